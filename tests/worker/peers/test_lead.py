"""What rank 0 decides: when a record is made, and which one enough pods have."""

from __future__ import annotations

import pytest

from elasticjob.peers.lead import SPREAD_SECONDS, Ending, Lead
from elasticjob.peers.records import File, Record, Report


def wrote(*paths: str, unready: tuple[str, ...] = (), copies: int = 1) -> Report:
    files = {path: File(10, 0o644, ("0" * 64,), mtime_ns=1) for path in paths}
    return Report(files, unready=frozenset(unready), copies=copies)


NOTHING = Report(copies=1)
START = 1000.0  # of the clock, in seconds


def test_a_record_is_made_when_all_have_looked_once_more() -> None:
    lead = Lead(3, 2, 1)
    lead.take(0, wrote("a"), 0)
    assert lead.make_record(None) is None, "rank 1 has said nothing yet"
    lead.take(1, NOTHING, 0)
    assert not lead.is_proposing()
    assert lead.make_record(None) is None
    assert lead.round == 1
    assert lead.is_proposing(), "the pods should report at once"
    lead.take(0, wrote("a"), 1)
    assert lead.make_record(None) is None, "what rank 1 said may be older than the file"
    lead.take(1, NOTHING, 1)
    made = lead.make_record(None)
    assert made is not None
    assert (made.order, set(made.files), lead.round) == ((3, 1), {"a"}, 1)
    assert lead.make_record(made) is None, "nothing is new"
    assert not lead.is_proposing()
    lead.take(1, NOTHING, 1)
    assert not lead.has_news, "it says the same"
    lead.take(1, NOTHING, 1, made.name)
    assert lead.has_news, "it has the record"


def test_a_part_that_is_still_written_is_seen_before_a_record_is_made() -> None:
    lead = Lead(3, 2, 1)
    lead.take(0, wrote("a/0"), 0)
    lead.take(1, NOTHING, 0)  # it looked before its script wrote
    assert lead.make_record(None) is None
    for rank, report in enumerate((wrote("a/0"), wrote(unready=("a",)))):
        lead.take(rank, report, 1)
    assert lead.make_record(None) is None, "a folder without the part of rank 1"
    lead.take(1, wrote("a/1"), 1)
    assert lead.make_record(None) is None, "another proposal"
    assert lead.round == 2
    lead.take(0, wrote("a/0"), 2)
    lead.take(1, wrote("a/1"), 2)
    made = lead.make_record(None)
    assert made is not None
    assert set(made.files) == {"a/0", "a/1"}


@pytest.mark.parametrize(
    ("known", "copies", "seconds", "expected"),
    [
        pytest.param(("new", "new"), 1, 0.0, (2, 1), id="all have it, and one holds the files"),
        pytest.param(("new", "old"), 1, 0.0, (2, 1), id="enough have it"),
        pytest.param(("old", "old"), 1, 0.0, (1, 1), id="the one before"),
        pytest.param(("", ""), 1, 0.0, None, id="nobody has one"),
        pytest.param(("old", "old"), 1, 2 * SPREAD_SECONDS, (2, 0), id="it takes too long"),
        pytest.param(("new", "new"), 0, 0.0, (2, 0), id="no pod has room for the files"),
    ],
)
def test_which_record_is_kept(
    known: tuple[str, ...], copies: int, seconds: float, expected: tuple[int, int] | None
) -> None:
    lead = Lead(1, 3, 1)
    old, new = (Record(1, number, wrote(path).files) for number, path in ((1, "a"), (2, "b")))
    names = {"old": old.name, "new": new.name, "": ""}
    lead.take(0, wrote("b"), 0)
    assert lead.find_kept(START, old) is None, "not all have reported"
    for rank in (1, 2):
        lead.take(rank, NOTHING, 0, old.name)
    assert lead.find_kept(START, old) == (1, 1)
    for rank, name in enumerate(known, start=1):
        lead.take(rank, Report(copies=copies), 0, names[name])
    lead.find_kept(START, new)
    assert lead.find_kept(START + seconds, new) == expected
    assert lead.is_known(new) is ("new" in known)


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        pytest.param([Ending(True), Ending(True)], True, id="both"),
        pytest.param([Ending(True), Ending()], False, id="one stays"),
        pytest.param([Ending(True), None], False, id="one has said nothing"),
    ],
)
def test_all_pods_leave_if_each_of_them_says_so(endings: list[Ending | None], expected: bool) -> None:
    lead = Lead(3, 2, 1)
    for rank, ending in enumerate(endings):
        if ending is not None:
            lead.take(rank, NOTHING, 0, ending=ending)
    assert lead.do_all_leave is expected


DONE, WRITES = Ending(is_done=True), Ending(is_done=False)


@pytest.mark.parametrize(
    ("recorded", "reports", "expected"),
    [
        pytest.param(("a",), [(wrote("a"), DONE), (NOTHING, DONE)], True, id="all is recorded"),
        pytest.param((), [(NOTHING, DONE), (NOTHING, DONE)], True, id="there is nothing"),
        pytest.param((), [(NOTHING, DONE), (wrote("a"), DONE)], False, id="a file of another pod is not"),
        pytest.param(("a",), [(wrote("a"), DONE), (NOTHING, WRITES)], False, id="another pod still writes"),
        pytest.param(("a",), [(wrote("a"), DONE)], False, id="another pod has said nothing"),
        pytest.param(("a",), [(wrote("a"), DONE), (wrote(unready=("b",)), DONE)], True, id="what is never finished"),
    ],
)
def test_what_all_pods_have_written_is_recorded(
    recorded: tuple[str, ...], reports: list[tuple[Report, Ending]], expected: bool
) -> None:
    lead = Lead(3, 2, 1)
    for rank, (report, ending) in enumerate(reports):
        lead.take(rank, report, 0, ending=ending)
    record = Record(3, 1, wrote(*recorded).files) if recorded else None
    assert lead.is_settled(record) is expected


def test_nobody_waits_for_a_pod_that_has_gone() -> None:
    """It left in order: all that it had written is recorded."""
    lead = Lead(3, 2, 1)
    lead.note_leaving(1, left=True)
    for rank in range(2):
        lead.take(rank, wrote(str(rank)), 0)
    lead.make_record(None)
    for rank in range(2):
        lead.take(rank, wrote(str(rank)), 1)
    first = lead.make_record(None)
    assert first is not None and set(first.files) == {"0", "1"}, "it had said nothing, so it was waited for"
    lead.note_leaving(1, left=True)
    lead.take(0, wrote("0", "last"), 1)
    assert lead.make_record(first) is None, "rank 0 has to look once more"
    lead.take(0, wrote("0", "last"), lead.round)
    made = lead.make_record(first)
    assert made is not None and set(made.files) == {"0", "1", "last"}
    assert lead.is_known(made) and lead.is_settled(made)
    assert lead.find_writers(made) == {"0" * 64: [0]}
