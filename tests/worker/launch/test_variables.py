"""The variables that training stacks read, in every world: right in each, and nothing of an earlier one is left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = pytest.mark.timeout(300)
PROGRAMS = Path(__file__).parents[1] / "programs"

# What a launcher for a fixed world would set: a size in it is wrong in the next world.
FIXED = re.compile(r"NNODES|NODE_RANK|NUM_NODES|NUM_PROCESSES|PROCESS_ID|TF_CONFIG|JAX_.*|SLURM_.*|OMPI_.*")


def read_world(out: Path, generation: int, size: int, hub: FakeHub) -> list[dict[str, str]]:
    """The environments of a world, by rank."""
    files = [out / f"{generation}-{size}-{rank}.json" for rank in range(size)]
    hub.wait_for(lambda: all(file.exists() for file in files), 150, f"the ranks of generation {generation}")
    return [json.loads(file.read_text()) for file in files]


def judge(ranks: list[dict[str, str]], nproc: int) -> None:
    """Every variable that torch, Lightning, accelerate, transformers, DeepSpeed and recipes for JAX read."""
    pods = len(ranks) // nproc
    for rank, env in enumerate(ranks):
        expected = {
            "RANK": rank,
            "LOCAL_RANK": rank % nproc,
            "GROUP_RANK": rank // nproc,
            "ROLE_RANK": rank,
            "WORLD_SIZE": len(ranks),
            "LOCAL_WORLD_SIZE": nproc,
            "GROUP_WORLD_SIZE": pods,
            "ROLE_WORLD_SIZE": len(ranks),
        }
        assert {name: env[name] for name in expected} == {name: str(value) for name, value in expected.items()}
        assert {env[name] for name in ("TORCHELASTIC_RUN_ID", "PET_RDZV_ID")} == {"job"}
        assert env["PET_NNODES"] == "1:64", "the bounds, which hold in every world"
        assert [name for name in env if FIXED.fullmatch(name)] == []
    for name in ("MASTER_ADDR", "MASTER_PORT", "ELASTICJOB_GENERATION", "TORCHELASTIC_RESTART_COUNT"):
        assert len({env[name] for env in ranks}) == 1, f"all ranks agree on {name}"


def find_processes(ranks: list[dict[str, str]]) -> set[str]:
    return {env["pid"] for env in ranks}


@pytest.mark.parametrize("program", ["variables.py", "variables_in_session.py"])
def test_the_variables_are_right_in_every_world(hub: FakeHub, pods: Pods, tmp_path: Path, program: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = (str(PROGRAMS / program), str(out))
    env: dict[str, str | None] = {"PET_NPROC_PER_NODE": "2"}
    members = {f"pod-{number}": pods.start(f"pod-{number}", *command, env=env) for number in range(2)}
    first = hub.wait_for_world(2, timeout=120)
    before = read_world(out, first.generation, 4, hub)
    judge(before, 2)
    hub.set_size(3)
    members["pod-2"] = pods.start("pod-2", *command, env=env)
    second = hub.wait_for_world(3, newer_than=first.generation, timeout=150)
    after = read_world(out, second.generation, 6, hub)
    judge(after, 2)
    assert before[0]["MASTER_PORT"] != after[0]["MASTER_PORT"], "the store of a world is its own"
    hub.set_size(1)
    hub.remove(second.pods[1])
    members[second.pods[2]].kill()
    third = hub.wait_for_world(1, newer_than=second.generation, timeout=150)
    last = read_world(out, third.generation, 2, hub)
    judge(last, 2)
    stays = program == "variables_in_session.py"
    assert (find_processes(before) < find_processes(after)) == stays, "a session keeps its processes, others restart"
    assert (find_processes(last) < find_processes(after)) == stays
    assert not any("did not leave its world in time" in pod.log for pod in members.values())
