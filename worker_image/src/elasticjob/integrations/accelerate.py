"""For a loop with accelerate: whole checkpoints, also before announced changes, and progress.

from elasticjob.integrations.accelerate import Checkpoints

checkpoints = Checkpoints(accelerator, folder, every=100)
at = checkpoints.load({"epoch": 0, "batch": 0, "step": 0})
...
    checkpoints.after_step(at, loss=loss)
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from elasticjob.channel import progress
from elasticjob.checkpoint import requests
from elasticjob.context import context
from elasticjob.errors import ConfigurationError
from elasticjob.integrations import ranks, versions

versions.require("accelerate")

_PLACE = "elasticjob.json"  # where the training is; written before the folder gets its name
_UNFINISHED = "unfinished"
_REPLACED = "replaced"


def _step_of(place: Path) -> int | None:
    try:
        return int(json.loads((place / _PLACE).read_text())["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


class Checkpoints:
    """Checkpoints of `accelerator.save_state` in one folder, which all pods see."""

    def __init__(self, accelerator: Any, folder: str | Path, every: int = 100, keep: int = 2) -> None:
        """Saves every `every` steps and keeps the newest `keep` checkpoints. Raises ConfigurationError."""
        if every < 1 or keep < 1:
            raise ConfigurationError(f"Checkpoints(every={every}, keep={keep}): both must be at least 1")
        self._accelerator, self._folder = accelerator, Path(folder)
        self._every, self._keep = every, keep

    def load(self, start: dict[str, int]) -> dict[str, int]:
        """Load the newest checkpoint, after `accelerator.prepare`. Returns where it was made, or `start`.

        Where the same error has stopped the training twice without progress, it is an older one.
        """
        found = context.choose_start(self._find()[::-1], _step_of)
        if found is None:
            return dict(start)
        self._accelerator.load_state(str(found))
        return {**start, **json.loads((found / _PLACE).read_text())}

    def after_step(self, at: dict[str, int], total: int | None = None, **metrics: Any) -> None:
        """Call it on all ranks after each step, with `at["step"]` counted on. Saves if it is time or was requested."""
        requested = ranks.agree(requests.requested(), self._accelerator.device)
        if requested or at["step"] % self._every == 0:
            self._save(at)
            requests.clear()
        progress.report(at["step"], total, **metrics)

    def _save(self, at: dict[str, int]) -> None:
        unfinished = self._folder / _UNFINISHED
        if self._accelerator.is_main_process:
            shutil.rmtree(unfinished, ignore_errors=True)  # of a world that was killed
        self._accelerator.wait_for_everyone()
        self._accelerator.save_state(str(unfinished))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            (unfinished / _PLACE).write_text(json.dumps(at))
            place = self._folder / f"step-{at['step']:09d}"
            if place.exists():  # of the same step in an earlier world
                shutil.rmtree(self._folder / _REPLACED, ignore_errors=True)
                place.rename(self._folder / _REPLACED)
            unfinished.rename(place)
            shutil.rmtree(self._folder / _REPLACED, ignore_errors=True)
            for old in self._find()[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        self._accelerator.wait_for_everyone()

    def _find(self) -> list[Path]:
        """Those that are whole, in the order in which they were made: after going back, that is not the order of steps.

        One that was being replaced when its writer was killed is among them.
        """
        found = [*self._folder.glob(f"step-*/{_PLACE}"), *self._folder.glob(f"{_REPLACED}/{_PLACE}")]
        return [place.parent for place in sorted(found, key=lambda place: (place.stat().st_mtime_ns, place))]
