"""Logs steps to a tracker, and ends in the way that it is told: python tracked.py KIND FIRST LAST [killed|raises]."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

kind, first, last, *how = sys.argv[1:]
module: Any = importlib.import_module(f"elasticjob.integrations.{kind}")


def find_run() -> dict[str, Any]:
    """What MLflow has of the job."""
    client = module.mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("trains").experiment_id])
    history = {name: client.get_metric_history(runs[0].info.run_id, name) for name in ("loss", "elasticjob/world_size")}
    return {
        "status": [run.info.status for run in runs],
        "name": [run.info.run_name for run in runs],
        "params": [run.data.params for run in runs],
        "loss": [metric.step for metric in sorted(history["loss"], key=lambda one: one.timestamp)],
        "world_size": sorted([metric.step, metric.value] for metric in history["elasticjob/world_size"]),
    }


def is_written() -> bool:
    if kind == "mlflow":
        try:
            return len(find_run()["loss"]) > int(last) - int(first)
        except Exception:  # its files are not written in one piece
            return False
    return bool(tracker._waiting.empty() and tracker._backend._run is not None)


settings = {"params": {"lr": 0.1}} if kind == "mlflow" else {"config": {"lr": 0.1}}
with module.start_run("trains", patience=60.0, **settings) as tracker:
    for step in range(int(first), int(last) + 1):
        tracker.log(step, loss=1 / step)
        time.sleep(0.002)  # MLflow orders them by their milliseconds
    if how == ["killed"]:
        while not is_written():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == ["raises"]:
        raise ValueError("the script fails")
if kind == "mlflow":
    Path("found.json").write_text(json.dumps(find_run()))
