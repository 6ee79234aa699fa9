"""Which files make a checkpoint, and what is accepted from a peer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.peers import records
from elasticjob.peers.records import CHUNK_BYTES, File, Record, RecordError, Report


def file(content: int) -> File:
    return File(10, 0o644, (f"{content:064x}",))


def record(*paths: str, shared: bool = False) -> Record:
    return Record(1, 1, {path: file(1) for path in paths}, shared)


def wrote(*paths: str, content: int = 2, gone: tuple[str, ...] = (), unready: tuple[str, ...] = ()) -> Report:
    return Report({path: file(content) for path in paths}, frozenset(gone), frozenset(unready), 1)


NOTHING = Report()


@pytest.mark.parametrize(
    ("before", "reports", "expected"),
    [
        pytest.param(None, [wrote("a.pt"), NOTHING], {"a.pt": 2}, id="rank 0 saves a file"),
        pytest.param(record("a.pt"), [wrote("a.pt"), NOTHING], {"a.pt": 2}, id="a file is saved again"),
        pytest.param(record("a.pt"), [wrote("b.pt", gone=("a.pt",)), NOTHING], {"b.pt": 2}, id="the script drops one"),
        pytest.param(record("a.pt"), [wrote(unready=("a.pt",)), NOTHING], {"a.pt": 1}, id="it is being overwritten"),
        pytest.param(
            record("a.pt"), [wrote(gone=("a.pt",), unready=("a.pt",)), NOTHING], {"a.pt": 1}, id="between two versions"
        ),
        pytest.param(None, [wrote("a.pt", unready=("log",)), NOTHING], {"a.pt": 2}, id="a log never rests"),
        pytest.param(None, [wrote("a/0", "a/1"), NOTHING], {"a/0": 2, "a/1": 2}, id="a folder of one pod"),
        pytest.param(None, [wrote("a/0"), wrote("a/1")], {"a/0": 2, "a/1": 2}, id="a folder of all pods"),
        pytest.param(None, [wrote("a/0"), wrote(unready=("a",))], {}, id="one pod still writes"),
        pytest.param(None, [wrote("a/0"), wrote("a/1"), NOTHING], {}, id="one pod has not begun"),
        pytest.param(record("b/0", shared=True), [wrote("a/0"), NOTHING], {"b/0": 1}, id="of all pods the last time"),
        pytest.param(None, [wrote("a/__0_0.distcp"), wrote("a/__1_0.distcp")], {}, id="torch has not ended"),
        pytest.param(
            None,
            [wrote("a/__0_0.distcp", "a/.metadata"), NOTHING, wrote("a/__2_0.distcp")],
            {"a/__0_0.distcp": 2, "a/.metadata": 2, "a/__2_0.distcp": 2},
            id="torch has ended; a rank had nothing to write",
        ),
        pytest.param(None, [wrote("a.pt"), wrote("a.pt", content=3)], {"a.pt": 2}, id="the lowest rank counts"),
    ],
)
def test_what_is_complete(before: Record | None, reports: list[Report], expected: dict[str, int]) -> None:
    files, _ = records.combine(before, reports)
    assert files == {path: file(content) for path, content in expected.items()}


def at(second: int, *paths: str) -> Report:
    """What a pod wrote at this time."""
    return Report({path: File(10, 0o644, (f"{2:064x}",), mtime_ns=second * 10**9) for path in paths})


BEFORE = record("1/0", "1/1", "latest", shared=True)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([at(5, "2/0", "latest"), NOTHING], {"1/0": 1, "1/1": 1, "latest": 1}, id="rank 1 has not written"),
        pytest.param(
            [at(5, "2/0", "latest"), wrote(unready=("2",))], {"1/0": 1, "1/1": 1, "latest": 1}, id="rank 1 writes"
        ),
        pytest.param(
            [at(5, "2/0", "latest"), at(5, "2/1")],
            {"1/0": 1, "1/1": 1, "2/0": 2, "2/1": 2, "latest": 2},
            id="all have written",
        ),
        pytest.param(
            [Report(at(5, "2/0").files, frozenset(("1/0", "1/1"))), NOTHING],
            {"1/0": 1, "1/1": 1, "latest": 1},
            id="nothing is deleted before the next one is complete",
        ),
        pytest.param(
            [
                Report(at(5, "2/0").files, frozenset(("1/0", "1/1"))),
                Report({**at(5, "2/1").files, **at(1, "1/1").files}),
            ],
            {"2/0": 2, "2/1": 2, "latest": 1},
            id="what one pod deletes goes with all parts",
        ),
        pytest.param(
            [Report({**at(5, "best/0").files, **at(90, "latest").files}), NOTHING],
            {"1/0": 1, "1/1": 1, "latest": 2},
            id="a folder that is never complete",
        ),
        pytest.param(
            [Report({**at(5, "2/0").files, **at(3, "a").files}), NOTHING],
            {"1/0": 1, "1/1": 1, "latest": 1, "a": 2},
            id="written before that",
        ),
    ],
)
def test_nothing_names_a_folder_that_is_not_complete(reports: list[Report], expected: dict[str, int]) -> None:
    files, _ = records.combine(BEFORE, reports)
    assert files == {path: file(content) for path, content in expected.items()}


def test_a_folder_of_all_pods_is_remembered() -> None:
    assert records.combine(None, [wrote("a/0"), wrote("a/1")])[1]
    assert not records.combine(None, [wrote("a/0"), NOTHING])[1]
    assert not records.combine(None, [wrote("a.pt"), wrote("a.pt")])[1]


def test_a_report_is_covered_once_all_of_it_is_recorded() -> None:
    assert not records.covers(None, wrote("a"))
    assert not records.covers(record("a"), wrote("a")), "another content"
    assert not records.covers(Record(1, 2, {"a": file(2), "b": file(1)}), wrote("a", gone=("b",)))
    assert not records.covers(Record(1, 2, {"a": file(2)}), wrote("a", unready=("b",)))
    assert records.covers(Record(1, 2, {"a": file(2)}), wrote("a"))


def test_the_last_two_records_are_kept() -> None:
    made = [Record(generation, number, {}) for generation, number in ((2, 5), (1, 9), (2, 4), (1, 3))]
    assert [one.order for one in records.choose_kept(made)] == [(2, 4), (2, 5)]


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../b", "a//b", "", ".", "a/./b", "a\0b"])
def test_a_path_out_of_the_directory_is_refused(path: str) -> None:
    said = json.loads(record("a").dump())
    said["files"] = {path: said["files"]["a"]}
    with pytest.raises(RecordError, match="no path"):
        records.parse_record(json.dumps(said).encode())


@pytest.mark.parametrize(
    "file",
    [
        [10, 0, [], "", 0],
        [0, 0, ["0" * 64], "", 0],
        [10, 0, ["0" * 63], "", 0],
        [10, 0, ["../" + "0" * 61], "", 0],
        [-1, 0, [], "", 0],
        [0, 0, [], "../../etc", 0],
        [0, 0, [], "/etc", 0],
        [True, 0, ["0" * 64], "", 0],
        [CHUNK_BYTES + 1, 0, ["0" * 64], "", 0],
        {},
        [],
    ],
)
def test_a_file_that_cannot_be_is_refused(file: object) -> None:
    with pytest.raises(RecordError):
        records.parse_record(json.dumps({"generation": 1, "number": 1, "files": {"a": file}}).encode())


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for parse in (records.parse_record, records.parse_report):
        with pytest.raises(RecordError):
            parse(data)


PATHS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(PATHS, st.integers(0, 9).map(file), max_size=5)


@given(FILES, FILES, st.sets(PATHS), st.sets(st.sampled_from("abcdef")))
def test_json_and_nothing_unfinished(
    old: dict[str, File], new: dict[str, File], gone: set[str], busy: set[str]
) -> None:
    before, report = Record(3, 7, old), Report(new, frozenset(gone), frozenset(busy), 2)
    assert records.parse_record(before.dump()) == before
    assert records.parse_report(report.dump()) == report
    files, _ = records.combine(before, [report])
    assert {p: f for p, f in files.items() if records.entry_of(p) in busy} == {
        p: f for p, f in old.items() if records.entry_of(p) in busy
    }, "what is being written stays as it was"


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        pytest.param([5, 5], 2, 5, id="all have the newest"),
        pytest.param([5, 4], 1, 5, id="as many as wanted"),
        pytest.param([5, 4], 2, 4, id="one is behind"),
        pytest.param([5], 2, 0, id="too few pods have said something"),
        pytest.param([0, 0], 1, 0, id="none has any"),
        pytest.param([], 0, 5, id="nobody else is wanted"),
    ],
)
def test_the_newest_record_that_enough_pods_have(held: list[int], wanted: int, expected: int) -> None:
    assert records.find_held(held, wanted, 5) == expected
