"""Faults against checkpoints that peers hold, the short form; `make chaos CHAOS_ARGS="--only memory"` is longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.memory import ARCHIVE_KINDS, KINDS, Event, History, check, plan, run, shortened
from chaos.memory_judge import POINTER, Happened, Lost, Restored, Save, Told, judge
from chaos.memory_pods import LAYOUTS
from chaos.memory_store import ROOT, Store
from chaos.memory_store import find_whole as find_archived
from elasticjob.archive.layout import Object, name_save
from elasticjob.archive.layout import Save as ArchivedSave
from elasticjob.peers.records import File, Record

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def test_held_checkpoints_survive(tmp_path: Path) -> None:
    report = run(0, len(LAYOUTS), 3, tmp_path)
    assert not report.violations, "\n".join(report.violations)
    assert (report.histories, report.faults) == (len(LAYOUTS), 3 * len(LAYOUTS))


def test_archived_checkpoints_survive_all_pods(tmp_path: Path) -> None:
    report = run(0, len(LAYOUTS), 3, tmp_path, has_archive=True)
    assert not report.violations, "\n".join(report.violations)
    assert (report.histories, report.faults) == (len(LAYOUTS), 3 * len(LAYOUTS))


def event(kind: str, *, rank: float = 0.0, delay: float = 0.5, loses: bool = True) -> Event:
    return Event(kind, (rank, delay, 0.9, 0.3 if loses else 0.9))


@pytest.mark.parametrize(
    ("layout", "events"),
    [
        pytest.param(
            "file", (event("save"), event("tear", rank=0.9)), id="the holder is lost while a file is overwritten"
        ),
        pytest.param("pair", (event("save"), *[event("tear", loses=False)] * 4), id="two files of one save"),
        pytest.param("parts", tuple(event("lose-in-copy", delay=0.1 * i) for i in range(6)), id="a part is lost"),
    ],
)
def test_what_is_lost_at_some_moments(layout: str, events: tuple[Event, ...], tmp_path: Path) -> None:
    with shortened():
        assert check(History(2, 1, layout, events), 1, tmp_path / "history") == (len(events), [])


def test_a_store_that_returns_halves_tears_nothing(tmp_path: Path) -> None:
    events = (event("archive"), Event("store-fault", (0.0, 0.9, 0.7, 0.9)))  # FAULTS[int(0.7 * 5)]
    with shortened():
        assert check(History(2, 1, "folder", events * 3, True), 1, tmp_path / "history") == (6, [])


def test_the_store_notices_that_the_last_good_save_goes() -> None:
    store = Store(random.Random(1))
    record = Record(1, 1, {"a": File(1, 0o600, ("0" * 64,))})
    one = Object((1, 0), (("0" * 64, 1),))
    data = ArchivedSave("uid", record, 1, "", (one,)).dump()
    store.put(f"{ROOT}/objects/{one.name}", b"x")
    store.put(f"{ROOT}/saves/{name_save((1, 1), data)}", data)
    assert [save.order for save in find_archived(store.contents)] == [(1, 1)]
    store.put(f"{ROOT}/objects/another", b"x")
    store.delete(f"{ROOT}/objects/another")
    assert not store.wrong
    store.delete(f"{ROOT}/objects/{one.name}")
    assert "the last good save (1, 1) went" in store.wrong[0]
    store.put(f"{ROOT}/objects/{one.name}", b"y")
    store.put(f"{ROOT}/objects/{one.name}", b"z")
    assert "written twice" in store.wrong[1]


def test_plans_differ_and_cover_everything() -> None:
    plans = [plan(seed, 10) for seed in range(100)]
    assert len(set(plans)) == 100
    assert {event.kind for one in plans for event in one.events} == set(KINDS)
    archived = [plan(seed, 10, has_archive=True) for seed in range(100)]
    assert {event.kind for one in archived for event in one.events} == {*KINDS, *ARCHIVE_KINDS}
    assert {one.layout for one in plans} == set(LAYOUTS)
    assert all(1 <= one.replicas < one.size for one in plans)


def save(number: int, folder: str = "", pointer: bool = False) -> Save:
    files = {f"{folder}{name}": (f"{name} of {number}",) for name in ("a", "b")}
    return Save(number, files, (f"pointer to {number}",) if pointer else ())


def restored(*saves: Save, held: int = 0, **changes: str) -> Restored:
    """All pods have the files of these saves, with these changes; "" for a file that is missing."""
    files = {path: content for one in saves for path, content in one.files.items()}
    files |= dict([(POINTER, one.pointer) for one in saves if one.pointer][-1:])
    files |= {path: (content,) for path, content in changes.items()}
    return Restored([{path: content for path, content in files.items() if content != ("",)}] * 2, held)


ONE, TWO = save(1), save(2)
FIRST, SECOND = save(1, "1/", pointer=True), save(2, "2/", pointer=True)


@pytest.mark.parametrize(
    ("saves", "happened", "problem"),
    [
        pytest.param([ONE, TWO], [restored(), restored(ONE), restored(TWO)], None, id="nothing, and each of them"),
        pytest.param([FIRST, SECOND], [restored(FIRST, SECOND)], None, id="both"),
        pytest.param([FIRST, SECOND], [restored(FIRST, SECOND, latest="pointer to 1")], None, id="it names the older"),
        pytest.param([ONE, TWO], [restored(ONE, b="b of 2")], "of save 1 there is ['a']", id="a mixture"),
        pytest.param([ONE], [restored(ONE, b="")], "without ['b']", id="a part"),
        pytest.param([ONE], [restored(ONE, b="damaged")], "b is of no save", id="damaged"),
        pytest.param([ONE], [restored(ONE, c="torn")], "c is of no save", id="something else"),
        pytest.param(
            [FIRST, SECOND], [restored(FIRST, latest="pointer to 2")], "which is not there", id="a bad pointer"
        ),
        pytest.param([FIRST], [restored(FIRST, latest="torn")], "latest is of no save", id="a torn pointer"),
        pytest.param([ONE], [Restored([ONE.files, {}])], "the pods differ", id="not all pods have it"),
        pytest.param([ONE, TWO], [restored(ONE, held=2)], "save 2 was held, and 1 restored", id="one was held"),
        pytest.param([ONE, TWO], [Told(2, 1), restored(ONE)], "save 2 was promised", id="promised"),
        pytest.param([ONE, TWO], [Told(2, 1), Lost(1), restored(ONE)], "save 2 was promised", id="one may be lost"),
        pytest.param([ONE, TWO], [Told(2, 1), Lost(1), Lost(2), restored(ONE)], None, id="two may not"),
        pytest.param([ONE, TWO], [Told(2, 3), Lost(1), Lost(2), restored(ONE)], None, id="more copies than asked for"),
        pytest.param([ONE, TWO], [Told(2, 0), Lost(1), restored(ONE)], None, id="there was no copy"),
        pytest.param([ONE, TWO], [Told(2, 1), Told(2, 0), Lost(1), restored(ONE)], None, id="no copy any more"),
        pytest.param(
            [ONE, TWO], [Told(2, 1), Lost(1), Told(2, 1), Lost(2), restored(ONE)], "promised", id="told again"
        ),
    ],
)
def test_the_judge_sees(saves: list[Save], happened: list[Happened], problem: str | None) -> None:
    wrong = judge(saves, happened, 1)
    assert not wrong if problem is None else any(problem in one for one in wrong)
