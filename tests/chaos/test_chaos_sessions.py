"""Sessions under random schedules, the short form; `make chaos CHAOS_ARGS="--only sessions"` is the long one."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from chaos import curve, meshes
from chaos.meshes import Change, Mesh
from chaos.sessions import PLAIN, SHARDED, Event, Program, check, make_schedule, run_trial
from elasticjob.torchcompat import sharding
from elasticjob_operator.membership.losses import Source
from torch_features import needs_fsdp_on_cpu

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("program", "seed"), [(PLAIN, 136), pytest.param(SHARDED, 3, marks=needs_fsdp_on_cpu)])
@pytest.mark.usefixtures("backend")
def test_any_schedule_keeps_the_state(program: Program, seed: int, tmp_path: Path) -> None:
    faults, wrong = run_trial(seed, 4, tmp_path, program=program)
    assert not wrong, "\n".join(wrong)
    assert faults == 4


def test_the_schedules_have_every_event() -> None:
    events = {event.kind for seed in range(10) for event in make_schedule(seed, 8)}
    assert events == {"grow", "shrink", "kill", "kill-two", "grow-and-kill", "shrink-and-kill", "crash"}
    assert make_schedule(3, 8) == make_schedule(3, 8)


def step(generation: int, number: int, rank: int, **changes: Any) -> dict[str, Any]:
    position = [(number + 1) // 20, (number + 1) % 20 * 48]
    return {"generation": generation, "step": number, "rank": rank, "hash": f"h{number}", "used": position} | changes


GOOD = [step(1, 0, 0), step(1, 0, 1), step(1, 1, 0), step(2, 1, 0), step(2, 1, 1), step(2, 2, 0), step(2, 2, 1)]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([], None),
        ([step(2, 3, 0), step(2, 3, 1, hash="other")], "parameters differ"),
        ([step(3, 1, 0)], "2 steps are repeated"),
        ([step(3, 4, 0)], "1 steps are missing"),
        ([step(2, 2, 0)], "made the steps"),
        ([step(2, 3, 0, used=[0, 48])], "is at sample"),
        ([{name: value for name, value in step(2, 3, 0).items() if name != "hash"}], None),
    ],
)
def test_the_checker_sees(more: list[dict[str, Any]], problem: str | None) -> None:
    wrong = check(GOOD + more)
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
@pytest.mark.parametrize(("mesh", "seed"), [(Mesh(2, 2), 4), pytest.param(Mesh(1, 2, 2), 1, marks=pytest.mark.long)])
@pytest.mark.usefixtures("backend")
def test_any_schedule_of_a_mesh_gives_the_same_curve(mesh: Mesh, seed: int, tmp_path: Path) -> None:
    faults, wrong = meshes.run_trial(seed, 4, 20, mesh, curve.References(tmp_path), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert faults == 4


@pytest.mark.parametrize("mesh", [Mesh(2, 2), Mesh(2, 1), Mesh(1, 2), Mesh(3, 2), Mesh(1, 2, 2), Mesh(2, 1, 2)])
def test_the_schedules_of_a_mesh_have_every_event(mesh: Mesh) -> None:
    events = {event.kind for seed in range(20) for event in meshes.make_schedule(seed, 8, mesh)}
    assert events == set(meshes.KINDS)
    assert meshes.make_schedule(3, 8, mesh) == meshes.make_schedule(3, 8, mesh)
    for seed in range(20):
        living = mesh.size
        for event in meshes.make_schedule(seed, 8, mesh):
            assert max(event.ranks) < living // mesh.pods * mesh.pods, "members are lost, and not those who wait"
            living += meshes.count_new(event.kind, living, mesh)
            assert living <= mesh.largest
            living -= meshes.LOST.get(event.kind, 0)
            assert living >= mesh.pods


def test_a_history_is_told_where_it_goes_back_without_need() -> None:
    made = ((1, 7), (1, 8), (2, 8), (3, 5), (4, 6))
    lines = [{"generation": generation, "step": step} for generation, step in made]
    assert meshes.check_costs(lines, [Change(1, 2), Change(3, 4), Change(2, 3, Source.COPIES, 3)]) == []
    assert meshes.check_costs(lines, [Change(2, 3), Change(2, 3, Source.COPIES, 2)]) == [
        f"generation 3 goes back from step 8 to 5, though the state comes from {what} steps before"
        for what in ("ranks, of at most 0", "copies, of at most 2")
    ]


@pytest.mark.parametrize(
    ("event", "world", "copy_every", "expected"),
    [
        (Event("kill", (0, 1)), "abcd", 0, (Source.RANKS, 0)),
        (Event("kill-two", (0, 1)), "abcd", 0, (Source.RANKS, 0)),
        (Event("kill-two", (1, 3)), "abcd", 1, (Source.FILE, 10)),
        (Event("crash", (1, 3)), "abcd", 0, (Source.RANKS, 0)),
        (Event("kill", (1, 0)), "ab", 0, (Source.FILE, 10)),
        (Event("crash", (1, 0)), "ab", 1, (Source.COPIES, 2)),
    ],
)
def test_what_an_event_may_cost(event: Event, world: str, copy_every: int, expected: tuple[Source, int]) -> None:
    loss = meshes.foresee(Mesh(2, 2), event, world, (), copy_every)
    assert (loss.source, loss.steps) == expected


def test_a_history_is_told_where_a_loss_tears_a_copy() -> None:
    loss = meshes.foresee(Mesh(3, 2), Event("kill", (1, 0)), "abcdef", (), 0)
    assert not meshes.check_groups(Mesh(3, 2), [*"abcdef"], [*"cdef"], loss)
    (wrong,) = meshes.check_groups(Mesh(3, 2), [*"abcdef"], [*"cdaf"], loss)
    assert wrong.startswith("the pods of copy 2 are no copy")


@pytest.mark.parametrize(
    ("ready", "expected"),
    [("abcd", "abcd"), ("acd", "cd"), ("bc", "cb"), ("acde", "aecd"), ("abcde", "abcd"), ("bd", "db")],
)
def test_the_planner_seats_the_pods_of_a_mesh(ready: str, expected: str) -> None:
    assert "".join(meshes.seat(Mesh(2, 2), "abcd", list(ready))) == expected


def test_a_mesh_is_copies_by_shards() -> None:
    assert meshes.read_mesh("3x2") == Mesh(3, 2)
    assert meshes.read_mesh("1x2x2") == Mesh(1, 2, 2)
    for text in ("2", "2x", "0x2", "1x2x2x2", "axb"):
        with pytest.raises(ArgumentTypeError, match="COPIESxSHARDS"):
            meshes.read_mesh(text)


@pytest.mark.parametrize(
    ("mesh", "shards", "size", "pods"), [(Mesh(2, 2), 2, 4, 2), (Mesh(1, 2, 2), 4, 2, 2), (Mesh(2, 1, 2), 2, 2, 1)]
)
def test_the_pods_and_the_shards_of_a_mesh(mesh: Mesh, shards: int, size: int, pods: int) -> None:
    assert (mesh.shards, mesh.size, mesh.cut.layout.pods) == (shards, size, pods)
    assert mesh.largest * mesh.nproc <= 8, "as many as there are virtual ranks"
