"""The tables of docs/performance.md: result lines become cells, and every block of the page has a table."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, demo, harness, performance, sessions, snapshots, tables
from benchmarks.scoreboard.__main__ import PARTS, name_files
from benchmarks.tables import Column, Goal, Row, Table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()
CONDITIONS = {"machine": "a machine", "load": 0.5, "date": "2026-11-24", "command": "python -m benchmarks.x"}


def make_line(
    case: str, ours: Any, peer: Any = None, kind: harness.Kind = "seconds", **conditions: Any
) -> dict[str, Any]:
    """`ours` and `peer`: a sample, or a list of samples."""
    ours, peers = (value if isinstance(value, list) else [value] for value in (ours, peer))
    result = harness.Result("x", case, ours, "none" if peer is None else "them", [] if peer is None else peers, kind)
    return result.line(CONDITIONS | conditions)


def render_rows(table: Table, lines: list[dict[str, Any]]) -> list[str]:
    """The rows of the table without its head."""
    return tables.render(table, lines).partition("\n\n")[2].splitlines()[2:]


def make_table(*columns: Column, rows: tuple[Row, ...] = (), others: bool = True) -> Table:
    return Table("x", "make it", columns, rows, others)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (0.0, "seconds", "0 s"),
        (4.56e-7, "seconds", "0.456 µs"),
        (0.0005, "seconds", "500 µs"),
        (0.02345, "seconds", "23.4 ms"),
        (1.0, "seconds", "1 s"),
        (284.2, "seconds", "284 s"),
        (-3e-5, "seconds", "-30 µs"),
        (900, "bytes", "900 B"),
        (52 * 1024, "bytes", "52 KiB"),
        (150.4 * 2**20, "bytes", "150 MiB"),
        (46238.1, "rate", "46,238"),
        (0.035, "rate", "0.035"),
        (3.0, "count", "3"),
        (0.145, "share", "14.5%"),
        (0.001, "share", "0.1%"),
        (1.5, "share", "150%"),
    ],
)
def test_values_have_the_unit_of_their_size(value: float, kind: str, expected: str) -> None:
    assert tables.format_value(value, kind) == expected


@pytest.mark.parametrize(
    ("show", "ours", "peer", "expected"),
    [
        pytest.param("ours", 2.0, 4.0, "2 s", id="ours"),
        pytest.param("ours", [1.0, 2.0, 3.0], None, "2 s (1 to 3)", id="with its range"),
        pytest.param("ours", [1.0, 2.0, None], None, "2 s (1 to never)", id="once never"),
        pytest.param("ours", [None], None, "never", id="never"),
        pytest.param("both", 2.0, 4.0, "2 s, 4 s (0.5)", id="both"),
        pytest.param("both", 2.0, [None], "2 s, never", id="both without a ratio"),
        pytest.param("both", [1.0, 2.0, 3.0], None, "2 s", id="both without a peer"),
        pytest.param("peer", 2.0, 4.0, "4 s", id="the peer's"),
        pytest.param("peer", 2.0, None, "–", id="no peer's"),
        pytest.param("name", 2.0, 4.0, "them", id="the peer's name"),
        pytest.param("name", 2.0, None, "–", id="no name"),
        pytest.param("ratio", 2.0, 4.0, "0.5", id="ratio"),
        pytest.param("ratio", 2.0, None, "–", id="no ratio"),
        pytest.param("more", 2.0, 0.5, "1.5 s", id="more"),
        pytest.param("more", 2.0, None, "–", id="more than nothing"),
    ],
)
def test_a_column_shows_a_part_of_its_line(show: Any, ours: Any, peer: Any, expected: str) -> None:
    assert render_rows(make_table(Column("x", show=show)), [make_line("a", ours, peer)]) == [f"| a | {expected} |"]


def test_rows_are_named_first_and_then_those_of_the_file_in_its_order() -> None:
    columns = Column("elapsed", "* jobs: {}"), Column("CPU", "* jobs: {}, CPU")
    lines = [make_line("9 jobs: b, CPU", 2.0), make_line("9 jobs: b", 1.0), make_line("9 jobs: a", 3.0)]
    named = make_table(*columns, rows=(Row("a", "first"), Row("gone")), others=False)
    assert render_rows(named, lines) == ["| first | 3 s | – |", "| gone | – | – |"]
    assert render_rows(make_table(Column("x", "9 jobs: {}"), rows=(Row("a"),)), lines) == [
        "| a | 3 s |",
        "| b, CPU | 2 s |",
        "| b | 1 s |",
    ]


@pytest.mark.parametrize(
    ("goal", "show", "ours", "expected"),
    [
        pytest.param(Goal(2.0), "ours", 2.0, "| a | 2 s | 2 s |", id="reached"),
        pytest.param(Goal(2.0), "ours", 2.5, "| a | **2.5 s** | 2 s |", id="missed"),
        pytest.param(Goal(2.0), "ours", None, "| a | **never** | 2 s |", id="never"),
        pytest.param(Goal(2.0), "peer", 9.0, "| a | 4 s | 2 s |", id="the peer has no goal"),
        pytest.param(Goal(1.0, "ratio"), "both", 5.0, "| a | **5 s, 4 s (1.25)** | 1 times the peer |", id="ratio"),
        pytest.param(Goal(1.0, "more"), "more", 4.5, "| a | 500 ms | 1 s |", id="more, reached"),
        pytest.param(Goal(1.0, "more"), "more", 5.5, "| a | **1.5 s** | 1 s |", id="more, missed"),
        pytest.param(Goal(1.0, at="x"), "ours", 2.0, "| a | **2 s** | x: 1 s |", id="in this column"),
        pytest.param(Goal(1.0, at="y"), "ours", 2.0, "| a | 2 s | y: 1 s |", id="in another column"),
    ],
)
def test_a_cell_that_misses_its_goal_is_bold(goal: Goal, show: Any, ours: Any, expected: str) -> None:
    table = make_table(Column("x", show=show), rows=(Row("a", goal=goal),))
    assert render_rows(table, [make_line("a", ours, 4.0)]) == [expected]


def test_seconds_per_second_are_a_share() -> None:
    table = make_table(Column("x"), rows=(Row("CPU", goal=Goal(0.1), is_share=True),))
    assert render_rows(table, [make_line("CPU", 0.25)]) == ["| CPU | **25%** | 10% |"]


def test_the_conditions_stand_above_a_table() -> None:
    lines = [make_line("a", 1.0, 2.0), make_line("b", [1.0, 2.0], load=3.25, date="2026-11-25")]
    text = tables.render(make_table(Column("x", show="both")), lines).splitlines()[0]
    assert text == (
        "2026-11-24, 2026-11-25, a machine, load 0.5 to 3.2: `python -m benchmarks.x`. "
        "Each value is the median of 1 to 2. After the comma: them; in parentheses: the ratio."
    )
    alone = tables.render(make_table(Column("x")), lines[:1]).splitlines()[0]
    assert alone.endswith("load 0.5: `python -m benchmarks.x`. Each value is one measurement.")
    of_others = make_table(Column("x"), rows=(Row("a"),), others=False)
    assert "load 0.5:" in tables.render(of_others, lines), "only of the lines that the table has"


def test_without_a_file_the_block_names_the_command() -> None:
    assert tables.render(make_table(Column("x")), []) == "Not measured yet: `make it` makes this table."


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "python -m benchmarks.hub"),
        (["--quick", "--keep", "--out", "/home/me/x"], "python -m benchmarks.hub --quick"),
        (["--out=/home/me/x", "--agents", "100"], "python -m benchmarks.hub --agents 100"),
        (["--cases", "SIGKILL rank 0"], "python -m benchmarks.hub --cases 'SIGKILL rank 0'"),
    ],
)
def test_a_command_is_kept_without_the_folders_of_the_machine(argv: list[str], expected: str) -> None:
    assert harness.describe_command("hub", argv) == expected


def test_a_report_has_where_when_and_how(tmp_path: Path) -> None:
    argv = ["--quick", "--out", str(tmp_path)]
    options = harness.parse_options("hub", "", argv, budgets=(1, 2), repeats=(3, 4))
    report = harness.Report("hub-churn", options)
    report.add(harness.Result("hub", "a", [1.0], "none", []))
    report.finish()
    (line,) = runpy.run_path(str(ROOT / "scripts" / "result_tables.py"))["read_lines"](tmp_path / "hub-churn.jsonl")
    assert line["command"] == "python -m benchmarks.hub --quick"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", line["date"])
    assert line["load"] >= 0
    assert line["repeats"] == 1


def test_every_table_is_on_the_page_once_and_every_block_has_a_table() -> None:
    blocks = re.findall(r"<!-- generated: (.+) -->", PAGE)
    assert sorted(blocks) == sorted([*performance.TABLES, *performance.BOARDS, "gpu"])  # of benchmarks.gpu


def test_no_table_is_typed_by_hand() -> None:
    outside = re.sub(r"<!-- generated: .*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    assert [line for line in outside.splitlines() if line.startswith("|---")] == []


@pytest.mark.parametrize("path", sorted(harness.KEPT.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_kept_result_has_a_table_and_no_folder_of_a_machine(path: Path) -> None:
    assert path.stem in {table.file for table in performance.TABLES.values()}
    assert not re.search(r"/(home|root|work|tmp)/", path.read_text())


@pytest.mark.parametrize("name", sorted(performance.TABLES))
def test_the_first_column_of_each_kept_table_has_lines(name: str) -> None:
    """A case that was renamed would leave an empty table."""
    table = performance.TABLES[name]
    path = harness.KEPT / f"{table.file}.jsonl"
    lines = runpy.run_path(str(ROOT / "scripts" / "result_tables.py"))["read_lines"](path)
    assert not lines or table.columns[0].find(lines)


def test_the_demos_events_become_seconds_of_each_kind() -> None:
    start = {"event": "start", "seconds": 2.1, "sinceEventSeconds": 2.1, "phases": {"pod": 0.5}}
    grown = {"event": "scale-up", "seconds": 0.2, "sinceEventSeconds": 1.8}
    summary = {"example": "digits", "stepsRepeatedAtMost": 3, "events": [start, grown, {"event": "done", "seconds": 1}]}
    assert demo.read_times(summary) == {
        "start": 2.1,
        "start, pod": 0.5,
        "scale-up, pause": 0.2,
        "scale-up, to the first step": 1.8,
        "done": 1,
    }
    cases = [line.case for line in demo.describe([summary])]
    assert cases[0] == "digits: start"
    assert cases[-1] == "digits: steps repeated at most"


def test_what_the_scripts_print_becomes_result_lines() -> None:
    step = {f"{side}{what}Us": 1000.0 for side in ("session", "plain") for what in ("Step", "Main", "Cpu")}
    (whole, *_) = sessions.describe_steps("DDP, 2 ranks", [step | {"sessionStepUs": 1040.0}])
    assert (whole.case, whole.ours, whole.peer_values) == ("DDP, 2 ranks: a step", [0.00104], [0.001])
    look = {"regroups": 0, "threads": 5, "files": 20, "sockets": 4, "rssMiB": 2.0, "msEach": 9000.0}
    first, then = (sessions.describe_regroups("DDP", [look | {"regroups": count}]) for count in (0, 100))
    assert len(then) == len(first) + 1, "before the first regroup, the time is that of the start"
    assert then[-1].ours == [9.0]
    saved = {"mb": 10, "waits": 1.0, "untilComplete": 3.0, "copy": 2.0, "torchSave": 8.0}
    waits, complete = snapshots.describe([saved])
    assert (waits.ours, waits.peer_values, complete.peer_values) == ([0.001], [0.008], [0.002])
    times = commands.Times([1.0], [0.5], [0.25])
    assert [one.ours for one in commands.compare("list", times, "alone", times, has_server=True)] == [
        [1.0],
        [0.5],
        [0.25],
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (PARTS, "scoreboard"),
        (["costs", "events", "goodput"], "scoreboard"),
        (["events"], "scoreboard-events"),
        (["goodput", "costs"], "scoreboard-costs-goodput"),
    ],
)
def test_a_part_of_the_scoreboard_has_files_of_its_own(parts: list[str], expected: str) -> None:
    assert name_files(parts) == expected
