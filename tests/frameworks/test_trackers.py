"""Experiment trackers themselves, in the environment of `make frameworks`: a job is one run, whatever its attempts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from frameworks.environment import BIN, PROGRAMS, require
from worker.gang_helper import clean_environment

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (BIN / "python").exists(), reason="no environment with the trackers: make frameworks"),
]

TENSORBOARD = """
import time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

for first, last in ((1, 4), (3, 6)):  # an attempt, and one from the checkpoint of step 2
    with SummaryWriter(".", purge_step=first) as writer:
        for step in range(first, last + 1):
            writer.add_scalar("loss", 1 / step, step)
    time.sleep(1.1)  # the names of the files have the second in them, and are read in this order
read = EventAccumulator(".")
read.Reload()
print([event.step for event in read.Scalars("loss")])
"""

NAMES = """
import json, mlflow
from elasticjob.integrations.mlflow import start_run

names = ["loss", "acc@1", "50%", "loss (train)", "val//loss", "../up", "/", "a\\nb", "x" * 300]
with start_run("trains", params={"lr@0": 0.1}) as tracker:
    for step, name in enumerate(names):
        tracker.log(step, **{name: 1.0})
client = mlflow.MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("trains").experiment_id])
print(json.dumps([run.info.status, sorted(run.data.metrics), run.data.params]))
"""


def run(folder: Path, *command: str, generation: int = 1) -> subprocess.CompletedProcess[str]:
    """One attempt of a job, as a process of its own."""
    env = clean_environment(
        RANK="0", WORLD_SIZE=str(generation + 1), MASTER_ADDR="h", MASTER_PORT="1", ELASTICJOB_NAME="digits",
        ELASTICJOB_UID="1f0e", ELASTICJOB_GENERATION=str(generation), HOME=str(folder), WANDB_MODE="offline",
        WANDB_DIR=str(folder), WANDB_SILENT="true", MLFLOW_TRACKING_URI=f"file://{folder}/mlruns",
        MLFLOW_ALLOW_FILE_STORE="true", PATH=f"{BIN}:{os.environ['PATH']}",
    )  # fmt: skip
    env.pop("PYTHONPATH", None)
    python = [str(BIN / "python"), *command]
    return subprocess.run(python, env=env, cwd=folder, timeout=250, check=False, stdout=subprocess.PIPE, text=True)


def run_attempt(folder: Path, generation: int, kind: str, *arguments: str) -> int:
    """Its exit code."""
    return run(folder, str(PROGRAMS / "tracked.py"), kind, *arguments, generation=generation).returncode


def test_mlflow_has_one_run_of_all_attempts(tmp_path: Path) -> None:
    require("mlflow")
    assert run_attempt(tmp_path, 1, "mlflow", "1", "4", "killed") == -9  # the world changes
    assert run_attempt(tmp_path, 2, "mlflow", "3", "6", "raises") == 1  # from the last checkpoint
    assert run_attempt(tmp_path, 3, "mlflow", "5", "8") == 0
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert found["status"] == ["FINISHED"]
    assert found["name"] == ["digits"]
    assert found["params"] == [{"lr": "0.1"}]
    assert found["loss"] == [1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8]
    assert found["world_size"] == [[1, 2], [3, 3], [5, 4]]


def test_mlflow_gets_metrics_of_any_name(tmp_path: Path) -> None:
    """It refuses a whole request for a name that it does not allow, such as torchvision's acc@1."""
    require("mlflow")
    status, metrics, params = json.loads(run(tmp_path, "-c", NAMES).stdout)
    assert status == "FINISHED"
    assert params == {"lr_0": "0.1"}
    changes = ["elasticjob/generation", "elasticjob/world_size"]
    names = ["50_", "_", "a_b", "acc_1", "loss", "loss _train_", "up", "val/loss", "x" * 250]
    assert metrics == sorted([*changes, *names])


def test_wandb_has_one_id_for_all_attempts(tmp_path: Path) -> None:
    require("wandb")
    assert run_attempt(tmp_path, 1, "wandb", "1", "4", "killed") == -9
    assert run_attempt(tmp_path, 2, "wandb", "3", "6") == 0
    runs = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert all(name.endswith("-1f0e") for name in runs)


def test_tensorboard_drops_what_is_repeated(tmp_path: Path) -> None:
    require("tensorboard", "torch")
    done = run(tmp_path, "-c", TENSORBOARD)
    assert json.loads(done.stdout) == [1, 2, 3, 4, 5, 6]
