"""States that sessions on a device compare, cut anew and get from each other, with NCCL's semantics and with gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob import env
from elasticjob.torchcompat import sharding
from side_by_side import together
from torch_features import needs_fsdp_on_cpu
from worker.fake_agent import FakeAgent
from worker.sessions.test_device import PROGRAM, check, collect_norms, grow, train, undisturbed

__all__ = ["undisturbed"]  # a fixture

pytestmark = [pytest.mark.timeout(600), needs_fsdp_on_cpu]

AT_ONCE = 3  # see `side_by_side`
BACKENDS = pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
COMPARES = {env.COMPARE_EVERY_STEPS: "7", "FAKE_NCCL": "leaves=garbage"}


def check_last(agent: FakeAgent, right: dict[int, set[float]], last: int = 24) -> None:
    """What the ranks made last of each step is what an undisturbed run makes of it."""
    norms: dict[int, dict[int, list[float]]] = {}
    for row in sorted(agent.rows, key=lambda row: row["t"]):
        norms.setdefault(row["step"], {}).setdefault(row["generation"], []).append(row["norm"])
    found = {}
    for step, by_generation in norms.items():
        made = by_generation[max(by_generation)]
        size = next(row["size"] for row in agent.rows if row["generation"] == max(by_generation))
        found[step] = set(made[-size:])
    assert max(found) == last
    check(found, right)


@BACKENDS
@together
def test_the_replica_that_differs_leaves(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    agent, _ = train(tmp_path, BACKEND=backend, FLIP="10:1:1", **COMPARES)
    assert sorted(agent.ended) == [0, 0, 1]
    assert [one["message"] for one in agent.history if one["type"] == "corrupt"] == [
        "after step 14, the parameters of rank 1 differ from those of most of its replicas; all agreed after step 7"
    ]
    assert min(row["step"] for row in agent.rows if row["generation"] == 2) == 8
    check_last(agent, undisturbed("plain"))


@BACKENDS
@pytest.mark.parametrize("kind", ["plain", "hsdp"])
@together
def test_replicas_of_which_nobody_knows_who_is_wrong_go_back(
    tmp_path: Path, undisturbed: Any, kind: str, backend: str
) -> None:
    size = {"plain": 2, "hsdp": 4}[kind]
    agent, _ = train(tmp_path, size, KIND=kind, BACKEND=backend, FLIP="10:1:1", **COMPARES)
    assert agent.ended == [0] * size
    assert len([row for row in agent.rows if row["step"] == 12]) == 2 * size, "made twice by all ranks"
    check_last(agent, undisturbed(kind))


@BACKENDS
@pytest.mark.parametrize("kind", ["plain", "hsdp"])
@together
def test_a_rank_that_dies_when_all_compare_costs_the_steps_since_they_agreed(
    tmp_path: Path, undisturbed: Any, kind: str, backend: str
) -> None:
    """Others may have learnt that they differ, and this one may be what is wrong."""
    size = {"plain": 3, "hsdp": 4}[kind]
    agent, norms = train(tmp_path, size, KIND=kind, BACKEND=backend, KILL="14:0:1:comparing", **COMPARES)
    assert sorted(agent.ended) == [-9] + [0] * (size - 1)
    right = undisturbed(kind)
    check(norms, right)
    assert min(row["step"] for row in agent.rows if row["generation"] == 2) == 8


@BACKENDS
@together
def test_shards_are_cut_anew(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    """A rank joins, and another one does not go on."""
    variables = {"KIND": "fsdp", "BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    with FakeAgent(PROGRAM, tmp_path, LAST="24", **variables) as agent:
        agent.start(2)
        agent.wait(lambda: any(row["step"] >= 4 for row in agent.rows), "some steps")
        agent.join()
        agent.tell(announced=True)
        agent.form()
        agent.wait(lambda: any(row["generation"] == 2 and row["step"] >= 8 for row in agent.rows), "some more")
        agent.tell(announced=True)
        agent.wait(lambda: len(agent.idle) == 3, "all ranks to be idle")
        agent.ranks[0].kill()
        agent.wait(lambda: len(agent.living) == 2, "its end")
        agent.form()
        agent.run()
    norms = collect_norms(agent)
    check(norms, undisturbed("fsdp"))
    assert len({(row["step"], row["generation"]) for row in agent.rows}) == 25, "no step is made in two worlds"


@BACKENDS
@pytest.mark.parametrize("message", [2, 8, 14])
@together
def test_who_gives_a_joiner_its_shards_may_die_meanwhile(
    tmp_path: Path, undisturbed: Any, backend: str, message: int
) -> None:
    """At any of its messages: see `test_dying_source` for all of them."""
    variables = {"KIND": "fsdp", "BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "KILL": f"{message}:0:2:entering"}
    agent, norms = grow(tmp_path, 2, 4, **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("fsdp"))


@BACKENDS
@pytest.mark.parametrize(("kind", "message"), [("hsdp", 2), ("hsdp", 6), ("copies", 2), ("copies", 9)])
@together
def test_who_gives_shards_of_a_lost_world_may_die_meanwhile(
    tmp_path: Path, undisturbed: Any, backend: str, kind: str, message: int
) -> None:
    """The shards of both are with others: of copies, each rank has its own and that of the one before."""
    size = 4
    kill = f"12:3:1:forward,{message}:{0 if kind == 'hsdp' else 1}:2:entering"
    variables = {"KIND": kind, "BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "KILL": kill}
    agent, norms = train(tmp_path, size, **variables)
    assert sorted(agent.ended) == [-9, -9, 0, 0]
    check(norms, undisturbed(kind))


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
@BACKENDS
@together
def test_a_sharded_model_of_virtual_ranks_has_the_same_bits_after_a_loss(
    tmp_path: Path, undisturbed: Any, backend: str
) -> None:
    variables = {"KIND": "virtual hsdp", "BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, 4, KILL="7:3:1:forward", **variables)
    assert sorted(agent.ended) == [-9, 0, 0, 0]
    check(norms, undisturbed("virtual hsdp"), exactly=True)


@together
def test_a_device_without_room_for_a_second_copy_costs_nobody_the_process(tmp_path: Path, undisturbed: Any) -> None:
    """A rank whose state is not that of the others keeps it until all of the new one has arrived."""
    variables = {"FLIP": "12:1:1", "KILL": "13:2:1:forward", "DEVICE": "1", "NO_ROOM": "1"}
    agent, norms = train(tmp_path, FAKE_NCCL="leaves=garbage", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    assert "has no room for the state of rank 0 beside its own, and receives it in host memory" in agent.log
    check(norms, undisturbed("plain"))
