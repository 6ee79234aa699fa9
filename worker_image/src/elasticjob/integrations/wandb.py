"""For Weights & Biases: one run for all attempts of a job, online or with `WANDB_MODE=offline`.

from elasticjob.integrations.wandb import start_run

with start_run("digits", config={"lr": 0.1}) as tracker:
    ...
    tracker.log(step, loss=loss.item())

The run has the UID of the job as its id. The x-axis is the metric `step`: what is logged of a step again after a loss
is kept, which W&B would drop if the steps were its own. Offline, each attempt writes a folder, and `wandb sync` joins
those of one id. Characters of names that no text has become `?`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob.context.context import Context, current
from elasticjob.errors import ConfigurationError
from elasticjob.integrations.tracking import Point, Tracker

try:
    import wandb
except ImportError as error:
    raise ConfigurationError(f"{__name__} needs wandb: pip install wandb ({error})") from error


def start_run(project: str | None = None, config: Mapping[str, Any] | None = None, **options: Any) -> Tracker:
    """The tracker of this job's run. `options`: those of `Tracker`."""
    return Tracker(_Run(project, dict(config or {}), current()), **options)


class _Run:
    def __init__(self, project: str | None, config: dict[str, Any], place: Context) -> None:
        self._project, self._config, self._place = project, config, place
        self._run: Any = None

    def open(self) -> None:
        place = self._place
        again = {"id": place.uid, "resume": "allow"} if place.uid else {}
        self._run = wandb.init(project=self._project, name=place.job or None, config=self._config, **again)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            named = {name.encode(errors="replace").decode(): value for name, value in point.values.items()}
            self._run.log({**named, "step": point.step})

    def end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
