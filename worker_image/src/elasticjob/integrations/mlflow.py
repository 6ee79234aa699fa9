"""For MLflow: one run for all attempts of a job.

from elasticjob.integrations.mlflow import start_run

with start_run("digits", params={"lr": 0.1}) as tracker:
    ...
    tracker.log(step, loss=loss.item())

The run is found by its tag `elasticjob.uid`. MLflow keeps what was logged of a step before a loss beside what its
repetition logs. Characters of names that it refuses, as in acc@1, become `_`. `MLFLOW_TRACKING_URI` says where, as for
every script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob.context.context import Context, current
from elasticjob.errors import ConfigurationError
from elasticjob.integrations.tracking import Point, Tracker

try:
    import mlflow
    from mlflow.entities import Metric, Param
except ImportError as error:
    raise ConfigurationError(f"{__name__} needs MLflow: pip install mlflow, or mlflow-skinny ({error})") from error

UID = "elasticjob.uid"
_BATCH = 1000  # metrics of a request, as MLflow's servers allow
_LONGEST_NAME = 250


def start_run(experiment: str = "Default", params: Mapping[str, Any] | None = None, **options: Any) -> Tracker:
    """The tracker of this job's run. `params` are logged when the run begins. `options`: those of `Tracker`."""
    return Tracker(_Run(experiment, dict(params or {}), current()), **options)


def _clean(name: str) -> str:
    """The name as MLflow accepts it: it refuses all metrics of a request that has another one in it."""
    parts = re.sub(r"[^/\w.\- :]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:_LONGEST_NAME].rstrip("/") or "_"


class _Run:
    def __init__(self, experiment: str, params: dict[str, Any], place: Context) -> None:
        self._experiment, self._params, self._place = experiment, params, place
        self._client: Any = mlflow.MlflowClient()
        self._run = ""

    def open(self) -> None:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run = self._find(experiment)
        if run:
            self._client.update_run(run, status="RUNNING")
        else:
            tags = {"mlflow.runName": self._place.job} if self._place.job else {}
            tags |= {UID: self._place.uid} if self._place.uid else {}
            run = self._client.create_run(experiment, tags=tags).info.run_id
            params = [Param(_clean(name), str(value)) for name, value in self._params.items()]
            self._client.log_batch(run, params=params)
        self._run = run

    def _find(self, experiment: str) -> str:
        if not self._place.uid:
            return ""
        runs = self._client.search_runs([experiment], f"tags.`{UID}` = '{self._place.uid}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def write(self, points: Sequence[Point]) -> None:
        metrics = [
            Metric(_clean(name), value, int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])

    def end(self, failed: bool) -> None:
        self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")
