"""Who holds copies, what is restored, and when an entry is finished."""

from __future__ import annotations

import json

import pytest

from elasticjob.peers import choice, watch
from elasticjob.peers.choice import Holding, Peer
from elasticjob.peers.entering import Joined, is_nothing_saved, parse_joined
from elasticjob.peers.records import Report
from elasticjob.peers.watch import QUIET, Stat, Watch


@pytest.mark.parametrize(
    ("me", "nodes", "expected"),
    [
        pytest.param(0, "a", [], id="alone"),
        pytest.param(0, "abc", [1, 2], id="one pod a node"),
        pytest.param(2, "abc", [0, 1], id="each begins with its next one"),
        pytest.param(0, "aabb", [2, 1, 3], id="other nodes first"),
        pytest.param(0, "aabbc", [2, 4, 3, 1], id="one of each other node first, its own node last"),
        pytest.param(1, "aaa", [2, 0], id="one node"),
    ],
)
def test_holders(me: int, nodes: str, expected: list[int]) -> None:
    peers = [Peer(rank, "10.0.0.1", 1, node) for rank, node in enumerate(nodes)]
    found = [peer.rank for peer in choice.order_holders(me, peers)]
    if nodes == "aabb":
        assert found[0] in (2, 3), "the first is on the other node"
        assert sorted(found) == sorted(expected)
        assert found[-1] == 1, "its own node is the last"
    else:
        assert found == expected


def held(name: str, order: int, have: int, files: int = 2) -> Holding:
    return Holding(name, (1, order), files, have)


@pytest.mark.parametrize(
    ("holdings", "failed", "expected"),
    [
        pytest.param({0: [], 1: []}, (), None, id="none"),
        pytest.param({0: [held("a", 1, 0b11)], 1: [held("b", 2, 0b11)]}, (), "b", id="the newest"),
        pytest.param({0: [held("a", 1, 0b11), held("b", 2, 0b01)]}, (), "a", id="the newest is not whole"),
        pytest.param({0: [held("b", 2, 0b01)], 1: [held("b", 2, 0b10)]}, (), "b", id="whole together"),
        pytest.param({0: [held("a", 1, 0b11), held("b", 2, 0b11)]}, ("b",), "a", id="the newest is damaged"),
        pytest.param({0: [held("a", 1, 0b0, files=0)]}, (), None, id="without files"),
    ],
)
def test_what_is_restored(holdings: dict[int, list[Holding]], failed: tuple[str, ...], expected: str | None) -> None:
    found = choice.choose_record(holdings, frozenset(failed))
    assert (found and found.name) == expected


def test_who_has_a_file() -> None:
    holdings = {0: [held("b", 2, 0b01)], 1: [held("b", 2, 0b11)], 2: [held("a", 1, 0b11)], 3: [held("b", 2, 0b11)]}
    masks = choice.find_masks("b", holdings)
    assert choice.find_holders(1, masks, me=0) == [1, 3]
    assert choice.find_holders(0, masks, me=1) == [3, 0], "the load is spread, and nobody asks itself"
    assert choice.find_holders(0, choice.find_masks("a", holdings), me=2) == []


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        *((name, True) for name in (".hidden", "a.pt.tmp", "a.part", "tmp-checkpoint-10", "x.incomplete", "a~")),
        *((name, False) for name in ("a.pt", "checkpoint-10", "step-5", "latest", "template.json", "tmpfs")),
    ],
)
def test_temporary_names(name: str, ignored: bool) -> None:
    assert watch.is_ignored(name) is ignored


def test_an_entry_is_finished_when_nothing_in_it_changes() -> None:
    def stat(mtime: int) -> Stat:
        return Stat(1, mtime, 1)

    seen = Watch().look(0.0, {"a/1": stat(1), "b": stat(1), "c.tmp": stat(1)})
    assert seen.find_unready(QUIET / 2) == {"a", "b"}
    seen = seen.look(0.9, {"a/1": stat(1), "a/2": stat(2), "b": stat(1)})
    assert "a" in seen.find_unready(QUIET), "the folder has got another file"
    assert seen.find_unready(0.9, ended=True) == frozenset(), "the workers have ended"
    seen = seen.look(2.0, {"a/1": stat(1), "a/2": stat(3), "c": stat(1)})
    assert seen.find_unready(2.0 + QUIET / 2) == {"a", "b", "c"}, "b was removed, c was renamed"
    assert seen.find_unready(2.0 + QUIET) == frozenset()
    assert seen.entries == {"a", "c"}


@pytest.mark.parametrize(
    ("changes", "busy", "now", "unready"),
    [
        pytest.param({"a": (0.0,), "b": (0.5,)}, (), 1.2, {"a", "b"}, id="b was written right after a"),
        pytest.param({"a": (0.0,), "b": (0.5,)}, (), 1.6, set(), id="both rest"),
        pytest.param({"a": (0.0,), "b": (1.2,)}, (), 1.4, {"b"}, id="b came later"),
        pytest.param({"a": (0.0,), "b": (0.5, 1.0, 1.5, 2.0)}, (), 2.5, {"a", "b"}, id="b takes long"),
        pytest.param({"a": (0.0,), "b": (0.9,), "c": (1.8,)}, (), 2.0, {"a", "b", "c"}, id="one after another"),
        pytest.param({"a": (0.0,), "b": (0.0,)}, ("b",), 9.0, {"a", "b"}, id="b is open"),
        pytest.param({"a": (0.0,), "b": (5.0,)}, ("b",), 9.0, {"b"}, id="b is open, and was begun later"),
        pytest.param({"a": (0.0,), "b.tmp": (0.5,)}, (), 1.2, {"a"}, id="the next file is not renamed yet"),
        pytest.param({"a": (40.0,), "log": tuple(i / 2 for i in range(83))}, (), 41.2, {"log"}, id="a log never rests"),
        pytest.param(
            {str(i): (i / 2,) for i in range(90)}, (), 44.9, {"88", "89"}, id="something is saved all the time"
        ),
    ],
)
def test_what_changes_together_is_one_save(
    changes: dict[str, tuple[float, ...]], busy: tuple[str, ...], now: float, unready: set[str]
) -> None:
    seen, looked = Watch(quiet=1.0), 0.0
    files: dict[str, Stat] = {}
    for time, entry in sorted((time, entry) for entry, times in changes.items() for time in times):
        while time - looked > 0.1:
            looked += 0.1
            seen = seen.look(looked, dict(files))
        files[entry] = Stat(1, int(time * 1e9), 1)
        seen, looked = seen.look(time, dict(files)), time
    assert seen.find_unready(now, busy) == unready


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(0.3, id="the next look is soon"),
        pytest.param(5.0, id="copies took long: b may have been begun right after the first look"),
        pytest.param(100.0, id="they took very long"),
    ],
)
def test_what_may_have_changed_together_is_one_save(late: float) -> None:
    a, b = Stat(1, 1, 1), Stat(1, 1, 2)
    seen = Watch(quiet=1.0).look(0.0, {}).look(0.2, {"a": a}).look(0.2 + late, {"a": a, "b": b})
    assert seen.find_unready(0.2 + late + 2.0, ("b",)) == {"a", "b"}
    later = Watch(quiet=1.0).look(0.0, {"a": a}).look(1.5, {"a": a}).look(1.5 + late, {"a": a, "b": b})
    assert later.find_unready(1.5 + late + 2.0, ("b",)) == {"b"}, "there was a look at which b had not begun"


def test_a_file_that_rests_while_it_is_open_is_of_the_same_save() -> None:
    files = {"a": Stat(1, 1, 1), "b": Stat(1, 1, 2)}
    seen = Watch(quiet=1.0).look(0.0, files)
    assert seen.find_unready(3.0, ("b",)) == {"a", "b"}
    seen = seen.look(3.0, files, {"a", "b"}).look(3.5, {**files, "b": Stat(2, 2, 2)}, {"a", "b"})
    assert seen.find_unready(4.0) == {"a", "b"}, "b was finished a moment ago"
    assert seen.find_unready(4.5) == frozenset()
    seen = seen.look(4.5, {**files, "b": Stat(2, 2, 2)}).look(9.0, {**files, "b": Stat(3, 3, 2)})
    assert seen.find_unready(9.0) == {"b"}, "the next save"


NOTHING: tuple[Holding, ...] = ()
SOME = (Holding("a", (1, 1), 1, 1),)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([(NOTHING, (1, 1), False), (NOTHING, (0, 0), True)], True, id="a pod comes soon"),
        pytest.param([(NOTHING, (3, 2), False), (NOTHING, (3, 2), False)], True, id="the same pods again"),
        pytest.param([(NOTHING, (3, 2), False), (NOTHING, (2, 2), True)], False, id="one of them has missed a world"),
        pytest.param([(NOTHING, (1, 2), False), (NOTHING, (0, 0), True)], False, id="one of them is lost"),
        pytest.param([(NOTHING, (1, 2), False), (NOTHING, (1, 2), True)], False, id="one of them has heard of a save"),
        pytest.param([(NOTHING, (1, 1), False), (SOME, (0, 0), True)], False, id="a pod that comes has copies"),
        pytest.param([(NOTHING, (0, 0), True)], False, id="only new pods"),
    ],
)
def test_who_knows_that_nothing_was_saved(
    pods: list[tuple[tuple[Holding, ...], tuple[int, int], bool]], expected: bool
) -> None:
    said = [parse_joined(Joined(held, Report(), last, True, saved).dump()) for held, last, saved in pods]
    assert is_nothing_saved(said) is expected


def test_an_older_runtime_does_not_say_whether_it_has_saved() -> None:
    said = json.loads(Joined(NOTHING, Report(), (1, 1), True, False).dump())
    del said["saved"]
    assert parse_joined(json.dumps(said).encode()).has_saved
