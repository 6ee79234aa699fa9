"""Snapshots in memory: which one is restored, what a killed or damaged write leaves, and what a full memory says."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from elasticjob.channel import shared_memory
from elasticjob.checkpoint.memory import Snapshots
from elasticjob.checkpoint.shelf import Shelf, SnapshotError, limit
from elasticjob.checkpoint.snapshots import WHOLE, Choice, Held, find_choices


def whole(step: int, world: str = "w") -> Held:
    return Held(world, step, WHOLE, 3)


def part(step: int, rank: int, world: str = "w", parts: int = 3) -> Held:
    return Held(world, step, rank, parts)


@pytest.mark.parametrize(
    ("inventories", "expected"),
    [
        pytest.param([[], [], []], [], id="nothing"),
        pytest.param([[whole(5)], [whole(5)], [whole(5)]], [(5, (0, 1, 2))], id="everywhere"),
        pytest.param([[], [whole(5)], [whole(5)]], [(5, (1, 1, 2))], id="a-newcomer-gets-it-from-another"),
        pytest.param([[whole(5)], [whole(4), whole(5)], []], [(5, (0, 1, 0)), (4, (1, 1, 1))], id="the-newest-first"),
        pytest.param([[whole(4)], [whole(5)], [whole(4)]], [(5, (1, 1, 1)), (4, (0, 2, 2))], id="one-is-a-step-ahead"),
        pytest.param([[part(5, 0)], [part(5, 1)], [part(5, 2)]], [(5, (0, 1, 2))], id="all-parts"),
        pytest.param([[part(5, 2)], [part(5, 0)], [part(5, 1)]], [(5, (1, 2, 0))], id="ranks-have-changed"),
        pytest.param([[part(5, 0)], [part(5, 1)], []], [], id="a-part-is-lost"),
        pytest.param([[part(5, 0)], [part(5, 1)], [part(4, 2)]], [], id="parts-of-two-steps"),
        pytest.param([[part(5, 0)], [part(5, 1)], [part(5, 2, "v")]], [], id="parts-of-two-worlds"),
        pytest.param([[part(5, 0), part(5, 2)], [part(5, 1)], []], [(5, (0, 1, 0))], id="a-copy-of-the-lost-part"),
        pytest.param([[part(5, 0, parts=2)], [part(5, 1, parts=2)], []], [], id="parts-of-a-smaller-world"),
    ],
)
def test_what_a_world_can_restore(inventories: list[list[Held]], expected: list[tuple[int, tuple[int, ...]]]) -> None:
    assert [(choice.step, choice.sources) for choice in find_choices(inventories)] == expected


def test_a_rank_uses_its_own_part_of_a_sharded_snapshot() -> None:
    assert [Choice("w", 5, False, ()).part_of(rank) for rank in (0, 2)] == [0, 2]
    assert Choice("w", 5, True, ()).part_of(2) == WHOLE


def write(shelf: Shelf, step: int, *, commit: bool = True) -> None:
    slot = shelf.begin(WHOLE, 1000)
    slot.data.fill_(step)
    if commit:
        slot.commit(whole(step), f"text {step}")


def test_the_last_two_snapshots_are_kept_also_by_a_new_process(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(Shelf(tmp_path), step)
    shelf = Shelf(tmp_path)
    assert {held.step for held in shelf.held()} == {2, 3}
    text, data = shelf.read("w", 2, WHOLE)
    assert text == "text 2" and torch.equal(data, torch.full((1000,), 2, dtype=torch.uint8))


def test_a_write_that_is_cut_off_leaves_the_one_before(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for step in (1, 2):
        write(shelf, step)
    write(shelf, 3, commit=False)
    assert [held.step for held in Shelf(tmp_path).held()] == [2]
    assert int(Shelf(tmp_path).read("w", 2, WHOLE)[1].sum()) == 2000


def test_a_damaged_snapshot_is_not_read(tmp_path: Path) -> None:
    write(Shelf(tmp_path), 7)
    (entry,) = tmp_path.glob("*.json")
    file = entry.with_suffix(".data")
    file.write_bytes(b"\x08" + file.read_bytes()[1:])
    with pytest.raises(SnapshotError, match="the snapshot of step 7 is damaged"):
        Shelf(tmp_path).read("w", 7, WHOLE)
    with pytest.raises(SnapshotError, match="the snapshot of step 8 is gone"):
        Shelf(tmp_path).read("w", 8, WHOLE)


def test_only_the_snapshot_that_was_restored_is_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for step in (1, 2):
        write(shelf, step)
    shelf.keep_only("w", 1)
    assert [held.step for held in shelf.held()] == [1]


def test_room_for_the_next_snapshots_leaves_the_one_that_was_restored(tmp_path: Path) -> None:
    write(Shelf(tmp_path), 1)
    Shelf(tmp_path).prepare(WHOLE, 1000)  # of the next process, which may end before it has written one
    assert int(Shelf(tmp_path).read("w", 1, WHOLE)[1].sum()) == 1000


def test_memory_that_is_too_small_is_named_with_the_remedy(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        remedy = r"no room for two snapshots of 64 MiB.*emptyDir with medium Memory.*sizeLimit"
        with pytest.raises(SnapshotError, match=remedy):
            Shelf(tmp_path / "shelf").begin(WHOLE, 64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Shelf(tmp_path / "shelf").held() == []


@pytest.mark.parametrize(
    ("total", "mine"),
    [
        pytest.param(64, 32, id="a container's default"),
        pytest.param(1000, 500, id="small"),
        pytest.param(8 << 10, 7 << 10, id="mounted"),
        pytest.param(0, 0, id="without an end"),
    ],
)
def test_snapshots_leave_a_part_of_the_memory_to_the_script(total: int, mine: int) -> None:
    assert limit(total << 20) == mine << 20


def test_the_folder_of_an_agent_that_has_ended_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / "elasticjob-memory-old"
    stale.mkdir()
    (stale / "lock").touch()
    mine = shared_memory.claim(tmp_path)
    assert mine is not None and not stale.exists()
    shared_memory.remove_stale(tmp_path)
    assert mine.exists(), "its agent lives"
    assert mine.stat().st_mode & 0o077 == 0, "of this user only"


def test_there_may_be_no_shared_memory(tmp_path: Path) -> None:
    assert shared_memory.claim(tmp_path / "missing") is None


def test_a_snapshot_of_a_runtime_that_noted_no_kind_of_its_optimizer_is_read() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshots = Snapshots(None, model, optimizer, {}, local_rank=0, per_pod=1, world="w", group=None)
    state = snapshots._state()
    assert "optimizer is Adam" in str(snapshots._find_misfit({**state, "kind": "Adam"}))
    del state["kind"]
    assert snapshots._find_misfit(state) is None
