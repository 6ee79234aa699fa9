"""For Lightning's Trainer: the right size in every world, checkpoints before announced changes, and progress.

from elasticjob.integrations.lightning import ElasticJobCallback, elastic_arguments, find_checkpoint

trainer = Trainer(**elastic_arguments(), callbacks=[ElasticJobCallback(folder)], ...)
trainer.fit(module, loader, ckpt_path=find_checkpoint(folder))
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
from pathlib import Path
from typing import Any

import torch

from elasticjob.channel import progress
from elasticjob.checkpoint import requests
from elasticjob.context import context
from elasticjob.errors import ConfigurationError
from elasticjob.integrations import ranks, versions

if importlib.util.find_spec("lightning") is not None:
    versions.require("lightning")
    from lightning.fabric.plugins.environments import (  # type: ignore[import-not-found, unused-ignore]
        TorchElasticEnvironment,
    )
    from lightning.pytorch import Callback  # type: ignore[import-not-found, unused-ignore]
else:  # the same package under its older name
    versions.require("pytorch-lightning")
    from lightning_fabric.plugins.environments import (  # type: ignore[import-not-found, no-redef, unused-ignore]
        TorchElasticEnvironment,
    )
    from pytorch_lightning import Callback  # type: ignore[import-not-found, no-redef, unused-ignore]

_NAME = "elasticjob.ckpt"


class ElasticJobEnvironment(TorchElasticEnvironment):  # type: ignore[misc, unused-ignore]
    """The world that torchrun's variables describe. Lightning compares it with `devices` and `num_nodes`."""

    def num_nodes(self) -> int:
        """The pods of this world. Every pod has the same number of workers."""
        return int(os.environ["WORLD_SIZE"]) // self.num_devices()

    def num_devices(self) -> int:
        """The workers of this pod."""
        return int(os.environ["LOCAL_WORLD_SIZE"])

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if (num_devices, num_nodes) != (self.num_devices(), self.num_nodes()):
            raise ConfigurationError(
                f"Trainer(devices={num_devices}, num_nodes={num_nodes}) is not the size of this world, which is "
                f"{self.num_devices()} and {self.num_nodes()}: write Trainer(**elastic_arguments(), ...)"
            )


def elastic_arguments() -> dict[str, Any]:
    """`devices`, `num_nodes` and `plugins` for a Trainer in this world; nothing without torchrun."""
    if "LOCAL_WORLD_SIZE" not in os.environ or "WORLD_SIZE" not in os.environ:
        return {}
    here = ElasticJobEnvironment()
    return {"devices": here.num_devices(), "num_nodes": here.num_nodes(), "plugins": [here]}


def find_checkpoint(folder: str | Path) -> str | None:
    """The newest whole checkpoint in this folder; None if there is none, to start from scratch.

    Where the same error has stopped the training twice without progress, it is an older one. Lightning renames a file
    when it is written. A sharded checkpoint is a folder, whose `meta.pt` is written last.
    """
    found: list[tuple[int, str]] = []
    for place in Path(folder).glob("*.ckpt"):
        last = place / "meta.pt" if place.is_dir() else place
        with contextlib.suppress(OSError):  # removed meanwhile, or not whole
            found.append((last.stat().st_mtime_ns, str(place)))
    chosen = context.choose_start(sorted(found, reverse=True), lambda one: _step_of(one[1]))
    return chosen[1] if chosen else None


def _step_of(place: str) -> int | None:
    """The step in a file's name, as Lightning's ModelCheckpoint writes it by default, or else in the file."""
    found = re.search(r"step=([0-9]{1,15})", Path(place).name)
    if found:
        return int(found[1])
    file = Path(place) / "meta.pt" if Path(place).is_dir() else place
    try:  # mapped: what is not looked at is not read
        step = torch.load(file, map_location="cpu", mmap=True, weights_only=True)["global_step"]
    except Exception:  # it is damaged, or holds objects of the script
        return None
    return step if isinstance(step, int) else None


class ElasticJobCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Saves a checkpoint when a change of the world is announced, so no step is repeated, and reports the progress.

    All ranks call it after every batch and agree on the step to save: that costs one all-reduce of one number per
    batch. While it trains, SIGTERM has its meaning from before `fit` again: Lightning's handler calls a collective, in
    which ranks that are at different steps block each other.
    """

    def __init__(self, folder: str | Path) -> None:
        self._place = Path(folder) / _NAME
        self._handler: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        with contextlib.suppress(ValueError):  # not the main thread, where no handler can be set
            signal.signal(signal.SIGTERM, self._handler or signal.SIG_DFL)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        wanted = ranks.agree(requests.requested(), pl_module.device)
        if wanted:
            trainer.save_checkpoint(str(self._place))
            ranks.wait_for_all()
            requests.clear()
        total = trainer.max_steps if trainer.max_steps > 0 else None
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        progress.report(trainer.global_step, total, **({} if loss is None else {"loss": loss.detach()}))
