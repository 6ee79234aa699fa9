"""Scripts of Horovod on torch.distributed, with real processes on gloo.

Results are those of Horovod 0.28.1, to which HOROVOD=folder of an environment that has it compares them again.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticjob.compat.horovod import optimizer
from worker.gang_helper import PROGRAMS, Member, clean_environment, run_gang

SAME_ON_ALL: dict[str, Any] = {
    "size": [3, True, True],
    "average": [3, 4],
    "sum": [9, 12],
    "not average": [9, 12],
    "min": [1.5, 2],
    "max": [4.5, 6],
    "product": [20.25, 48],
    "whole numbers": [12],
    "scaled": [6],
    "compressed": [3, 4],
    "scalar": 1,
    "unchanged": True,
    "in place": [[6], [6]],
    "later": [4],
    "grouped": [[6], [12, 18]],
    "gather": [0, 0, 1, 0, 1, 2],
    "gather rows": [[1, 1], [2, 2], [2, 2]],
    "gather later": [0, 1, 2],
    "broadcast": [3, 6],
    "broadcast in place": [2],
    "broadcast later": [6],
    "object": {"rank": 1, "of": [1, "a"]},
    "objects": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
    "gradient of allreduce": [3, 6],
    "gradient of average": [1, 2],
    "trained": [-3.0701, -0.064, -0.3267, 2.0199, -0.1607, 0.3833, 0.1337],
    "trained, clipped": [-4.6419, -0.2609, -0.1333, 1.9772, -0.2939, 0.5036, 0.1839],
    "trained, two passes": [-3.0921, -0.082, -0.2733, 2.0648, -0.1928, 0.3175, 0.1146],
    "trained, compressed": [-3.0701, -0.0641, -0.3267, 2.0199, -0.1606, 0.3833, 0.1337],
    "trained, by sums": [-3.1247, -0.0872, -0.2417, 2.0207, -0.2078, 0.281, 0.0824],
    "trained, divided before": [-3.0701, -0.064, -0.3267, 2.0199, -0.1607, 0.3833, 0.1337],
    "trained, a sparse table": [4.193, 0.287, -0.015, -2.1525, -0.8641, 0.3087, -0.2408],
}
NOT_IN_HOROVOD: dict[str, Any] = {
    "transposed": [[6, 18], [12, 24]],
    "in place, transposed": [[6, 18], [12, 24]],
}
BY_RANK: dict[str, Any] = {
    "gradient of allgather": [[1, 2], [3, 4], [5, 6]],
    "gradient of broadcast": [[0, 0], [1, 2], [0, 0]],
}
REFUSED = {
    "too early": "call hvd.init() first",
    "comm": "hvd.init(comm=",
    "process set": "process_set: only",
    "both": "give only `op`",
    "adasum": "op=Adasum",
    "root": "root_rank=2: the ranks are 0 to 1",
    "gather of a scalar": "tensor.reshape(1)",
    "gather of others": "(1, 1) of torch.float32, (1, 2) of torch.float32",
    "unknown": "hvd.alltoall of Horovod is not in elasticjob.compat.horovod: use torch.distributed.all_to_all_single.",
    "unknown, later": "hvd.alltoall_async of Horovod",
    "never heard of": "hvd.jump of Horovod is not in elasticjob.compat.horovod: see docs/horovod.md",
    "other models": "rank 1 and rank 0 have different tensors: bias, weight.",
    "no folder": "spec.checkpoints.path",
    "no passes": "backward_passes_per_step=0",
    "divided sum": "gradient_predivide_factor needs op=hvd.Average",
    "a name missing": "3 of the optimizer's 4 parameters have no name",
    "a name twice": "a is there twice",
    "parameters only": "give model.named_parameters()",
    "cleared too early": "optimizer.zero_grad() between backward() and optimizer.step()",
    "a second pass": "1.bias got 2 gradients before optimizer.step(): give DistributedOptimizer backward_passes",
    "sparse": "weight has a sparse gradient: give DistributedOptimizer sparse_as_dense=True",
    "clipped too early": "1.bias was changed after it was sent: call optimizer.synchronize() first",
    "scaled too early": "call optimizer.synchronize() first",
    "unscaled too early": "call optimizer.synchronize() first",
    "cleared by the model": "1.bias was changed after it was sent: call optimizer.synchronize() first",
    "copied": "save optimizer.state_dict()",
    "pickled": "save optimizer.state_dict()",
    "too few passes": "backward_passes_per_step=0",
}


@pytest.fixture(scope="module")
def gang() -> list[Member]:
    return run_gang(PROGRAMS / "horovod_program.py", 3)


@pytest.fixture(scope="module")
def mistaken() -> list[Member]:
    return run_gang(PROGRAMS / "horovod_errors_program.py", 2)


@pytest.mark.parametrize("check", SAME_ON_ALL)
def test_results_are_those_of_horovod(gang: list[Member], check: str) -> None:
    assert [member.results[check] for member in gang] == [SAME_ON_ALL[check]] * 3


@pytest.mark.parametrize("check", NOT_IN_HOROVOD)
def test_what_is_more_than_horovod(gang: list[Member], check: str) -> None:
    assert [member.results[check] for member in gang] == [NOT_IN_HOROVOD[check]] * 3


@pytest.mark.parametrize("check", BY_RANK)
def test_gradients_of_collectives_are_those_of_horovod(gang: list[Member], check: str) -> None:
    assert [member.results[check] for member in gang] == BY_RANK[check]


@pytest.mark.skipif("HOROVOD" not in os.environ, reason="HOROVOD is the folder of an environment that has Horovod")
def test_horovod_has_the_same_results() -> None:
    folder = Path(os.environ["HOROVOD"]) / "bin"
    environment = clean_environment(HVD="horovod.torch", PATH=f"{folder}:{os.environ['PATH']}")
    command = [f"{folder}/horovodrun", "--gloo", "-np", "3", f"{folder}/python", str(PROGRAMS / "horovod_program.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, dict[int, Any]] = {}
    for line in ran.stdout.splitlines():
        if '{"check"' in line:
            place, _, text = line.partition("<stdout>:")
            said = json.loads(text)
            found.setdefault(said["check"], {})[int(place.strip("[]"))] = said["result"]
    assert {name: [by_rank[rank] for rank in range(3)] for name, by_rank in found.items()} == {
        **{name: [result] * 3 for name, result in SAME_ON_ALL.items()},
        **BY_RANK,
    }


@pytest.mark.parametrize("check", REFUSED)
def test_a_mistake_is_refused_on_all_ranks(mistaken: list[Member], check: str) -> None:
    assert [REFUSED[check] in member.results[check] for member in mistaken] == [True] * 2, mistaken[0].results[check]


def test_a_scheduler_from_before_does_not_leave_out_the_other_ranks(mistaken: list[Member]) -> None:
    first, second = (member.results["scheduled before"] for member in mistaken)
    assert first == second
    assert first[1] == 0.025
    assert mistaken[0].results["is one"] is True


def test_gradients_meet_in_any_order(mistaken: list[Member]) -> None:
    assert [member.results["any order"] for member in mistaken] == [[-4.5, -7.5, -10.5, -3.0]] * 2


@pytest.mark.parametrize("when", ["unfrozen later", "added later", "wrapped again"])
def test_all_that_is_trained_is_averaged_whenever_that_begins(mistaken: list[Member], when: str) -> None:
    assert [member.results[when] for member in mistaken] == [True] * 2


@pytest.mark.parametrize("kind", ["closure", "closure, called often"])
def test_a_closure_is_for_all_ranks(mistaken: list[Member], kind: str) -> None:
    assert [member.results[kind] for member in mistaken] == [[True, True, 1]] * 2


def test_a_loaded_state_leaves_schedulers_and_hooks_as_they_are(mistaken: list[Member]) -> None:
    assert [member.results["scheduled before, loaded"] for member in mistaken] == [[0.05, 1]] * 2


def test_what_is_under_way_is_not_done(mistaken: list[Member]) -> None:
    assert mistaken[0].results["done"] == [False, True, True]


def test_a_group_of_tensors_has_one_handle(mistaken: list[Member]) -> None:
    assert [member.results["grouped later"] for member in mistaken] == [[[2], [2, 2]]] * 2
    assert [member.results["grouped later, in place"] for member in mistaken] == [[[2], [2, 2]]] * 2


def test_a_scaler_divides_what_is_averaged(mistaken: list[Member]) -> None:
    assert [member.results["scaled"] for member in mistaken] == [[True, True]] * 2


def test_averaging_twice_is_told(mistaken: list[Member]) -> None:
    (said,) = mistaken[0].results["averaged twice"]
    assert "optimizer.skip_synchronize()" in said


def test_the_world_can_be_left_twice(mistaken: list[Member]) -> None:
    assert [(member.exit_code, member.results["left"]) for member in mistaken] == [(0, False)] * 2


def test_a_bucket_has_one_dtype_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "BUCKET_BYTES", 20)
    kinds = [torch.float32, torch.float32, torch.float16, torch.float32, torch.float32, torch.float32]
    parameters = [torch.nn.Parameter(torch.zeros(4, dtype=kind)) for kind in kinds]
    buckets = [bucket.parameters for bucket in optimizer.split(parameters)]
    numbers = {one: number for number, one in enumerate(parameters)}
    assert [[numbers[one] for one in bucket] for bucket in buckets] == [[5, 4], [3], [2], [1, 0]]
