"""Training stacks as people use them, through one story: grow, lose rank 0, shrink, lose the operator, end.

They need an environment of their own: `make frameworks` makes it and runs this file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chaos import sessions
from elasticjob_devcluster import Cluster
from frameworks import story
from frameworks.environment import BIN, PROGRAMS, require
from operator_fixture import Jobs, OperatorProcess

SAMPLES, BATCH = 960, 48

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no environment with the frameworks: make frameworks"),
]


@dataclass(frozen=True)
class Row:
    """One training stack: its program, and what is true of it."""

    program: str
    arguments: tuple[str, ...] = ()
    steps: int = 2000
    exact: bool = False  # every whole epoch has every sample once, at any size
    charged: int = 0  # failures that the stack causes by itself
    processes: int | None = None  # in a session: one of each pod, and the killed pod's successor
    repeated: int = 1  # in a session: steps that a loss costs
    needs: tuple[str, ...] = ("torch",)  # modules that have to be there
    sizes: tuple[int, ...] = (2, 3, 2)
    killed: tuple[int, ...] = (0,)  # ranks, at the second size
    increment: int = 1
    settled: int = 25  # steps between two changes, in which a checkpoint is saved


# Two dimensions at 4 ranks. The killed ranks are at either end of each: a shard, a half of a layer, a stage, a replica.
TITAN = Row("torchtitan_llama3.py", steps=300, exact=True, settled=12, needs=("torchtitan",))
TWO_BY_TWO = replace(TITAN, sizes=(2, 4, 2, 4), killed=(0, 3), increment=2)

ROWS = {
    "transformers": Row("transformers_trainer.py", needs=("transformers", "accelerate")),
    "transformers-adapter": Row("transformers_adapter.py", exact=True, needs=("transformers", "accelerate")),
    "trl-adapter": Row("trl_sft.py", exact=True, needs=("trl",)),
    "accelerate": Row("accelerate_loop.py", needs=("accelerate",)),
    "accelerate-adapter": Row("accelerate_adapter.py", exact=True, needs=("accelerate",)),
    "lightning": Row("lightning_fit.py", needs=("lightning",)),
    "lightning-adapter": Row("lightning_adapter.py", needs=("lightning",)),
    "lightning-session": Row("lightning_session.py", exact=True, processes=4, needs=("lightning",)),
    "deepspeed-zero-1": Row("deepspeed_zero.py", ("1",), exact=True, needs=("deepspeed",)),
    "deepspeed-zero-2": Row("deepspeed_zero.py", ("2",), exact=True, needs=("deepspeed",)),
    "fsdp2": Row("fsdp2_checkpoint.py", exact=True),
    "dcp-async": Row("dcp_async.py", exact=True),
    "snapshot": Row("snapshot_ddp.py", exact=True),
    "horovod-compat": Row("horovod_compat.py", exact=True),
    "mpi4py": Row("mpi4py_restart.py", exact=True, needs=("mpi4py",)),
    "spark-parquet": Row("spark_parquet.py", exact=True, processes=4, needs=("pyarrow",)),
    "torchtitan": replace(TITAN, sizes=(2, 4, 2, 4), killed=(0, 3)),
    "torchtitan-async": replace(TITAN, arguments=("async",)),
    "torchtitan-tensor": replace(TWO_BY_TWO, arguments=("tensor=2",)),
    "torchtitan-pipeline": replace(TWO_BY_TWO, arguments=("pipeline=2",)),
    "torchtitan-hsdp": replace(TWO_BY_TWO, arguments=("replicas=2",)),
    # Its shards are copied in every second step.
    "torchtitan-session": replace(TITAN, program="torchtitan_session.py", processes=4, repeated=4),
    # A process of JAX ends itself when it loses the coordinator, which is rank 0.
    "jax": Row("jax_restart.py", exact=True, charged=1, needs=("jax",)),
}


def find_spec(row: Row, out: Path) -> dict[str, Any]:
    command = [str(BIN / "torchrun"), str(PROGRAMS / row.program), str(row.steps), *row.arguments]
    variables = {
        "OUT": str(out),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(out / "huggingface"),
        "PATH": f"{BIN}:{os.environ['PATH']}",  # DeepSpeed looks for ninja
        **{name: os.environ[name] for name in ("PARQUET",) if name in os.environ},  # a folder of real Spark's
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    container = {"name": "trainer", "image": "a/b:1", "command": command, "env": env}
    policy = {"minReplicas": row.increment, "maxReplicas": max(row.sizes), "replicaIncrementStep": row.increment}
    return {"replicas": row.sizes[0], "elasticPolicy": policy, "template": {"spec": {"containers": [container]}}}


@pytest.mark.parametrize("name", ROWS)
def test_a_training_stack_goes_through_every_change(
    jobs: Jobs, cluster: Cluster, operator: OperatorProcess, tmp_path: Path, name: str
) -> None:
    row = ROWS[name]
    require(*row.needs)
    told = story.tell(
        jobs, cluster, operator, name, find_spec(row, tmp_path), tmp_path, row.sizes, row.killed, row.settled
    )
    lineage = story.find_lineage(told.steps)
    assert set(lineage) == set(range(1, row.steps + 1)), "every step was made"
    assert {one.world for one in told.steps} >= set(row.sizes), "it trained at each size"
    first, last = story.find_losses(told.steps)
    assert last < 0.5 * first, "it learned"
    uneven = story.find_uneven(told.steps, SAMPLES)
    if row.processes is not None:
        assert len(list(tmp_path.glob("*.jsonl"))) == row.processes, "nobody was started again"
        assert story.count_repeated(told.steps) <= row.repeated, "only the step that the loss broke"
        unwritten = [one for one in uneven.values() if one[0] <= BATCH / 3 and not one[1]]
        assert len(uneven) == len(unwritten) <= 1, "the killed pod may have made a step that it did not write down"
    elif row.exact:
        assert not uneven
    else:
        assert len(uneven) <= 5, "only epochs in which the world changed can be uneven"
    if name.endswith("-adapter"):
        assert story.count_repeated(told.steps) <= 200, "only the killed pod costs steps"
    status = jobs.status(name)
    assert status["restarts"]["user"] <= row.charged, json.dumps(status.get("failures"), indent=1)
    measured = {
        "pauses": {event: round(seconds, 2) for event, seconds in story.find_pauses(told).items()},
        "cpu": {generation: round(seconds, 2) for generation, seconds in story.find_start_costs(told.steps).items()},
        "repeated": story.count_repeated(told.steps),
        "uneven": uneven,
        "loss": [round(first, 4), round(last, 4)],
        "lostSeconds": status.get("lostSeconds"),
    }
    print(f"measured {name}: {json.dumps(measured)}")


@pytest.mark.parametrize("seed", [0, 1])
def test_lightning_in_a_session_survives_random_changes(seed: int, tmp_path: Path) -> None:
    """The short form of `make chaos CHAOS_ARGS="--only lightning"`."""
    require("lightning")
    faults, wrong = sessions.run_trial(seed, 4, tmp_path, program=sessions.LIGHTNING)
    assert not wrong, "\n".join(wrong)
    assert faults == 4
