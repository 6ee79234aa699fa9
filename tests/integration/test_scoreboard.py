"""The pure part of the scoreboard: statistics, order, planning and the page, with exact values."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks import cases, launchers, peers
from benchmarks.launchers.catalogue import CONTESTANTS, Contestant
from benchmarks.launchers.nodes import Nodes
from benchmarks.launchers.torchrun import defaults
from benchmarks.meter import Meter
from benchmarks.scoreboard import __main__ as command
from benchmarks.scoreboard import cells, costs, measuring, page, planning

OURS = cells.Cell("SIGKILL: recovery", "s", "ElasticJob: session", "best", "own", ours=True)
PEER = cells.Cell("SIGKILL: recovery", "s", "torchft tuned", "best", "own")


@pytest.mark.parametrize(
    ("samples", "low", "high", "coverage"),
    [
        pytest.param([1.0], 1.0, 1.0, 0.0, id="one says nothing"),
        pytest.param([1.0, 2.0], 1.0, 2.0, 0.5, id="two"),
        pytest.param([3.0, 1.0, 2.0], 1.0, 3.0, 0.75, id="three"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0], 1.0, 5.0, 0.9375, id="five do not reach 95 %: the widest"),
        pytest.param(list(map(float, range(1, 10))), 2.0, 8.0, 1 - 2 * 10 / 512, id="nine: one left out on each side"),
        pytest.param([1.0, None, 2.0], 1.0, None, 0.75, id="one of three never happened"),
    ],
)
def test_the_interval_of_a_median_is_one_of_order_statistics(
    samples: list[float | None], low: float, high: float | None, coverage: float
) -> None:
    found = cells.find_interval(samples)
    assert (found.low, found.high) == (low, high)
    assert found.coverage == pytest.approx(coverage)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng, hits, rounds = random.Random(3), 0, 4000
    for _ in range(rounds):
        found = cells.find_interval([rng.expovariate(1.0) for _ in range(9)])
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.6931471805599453 <= found.high
    assert hits / rounds == pytest.approx(found.coverage, abs=0.02)


def test_a_further_sample_is_added_and_a_blank_never_replaces_one() -> None:
    board = cells.add((), replace(OURS, note="not installed"))
    board = cells.add(board, replace(OURS, samples=(1.0,)))
    board = cells.add(board, replace(OURS, samples=(None,), note="not in 75 s"))
    board = cells.add(board, replace(OURS, note="the time was over"))
    assert board == (replace(OURS, samples=(1.0, None), note="not in 75 s"),)
    assert len(cells.add(board, replace(PEER, samples=(2.0,)))) == 2


def test_the_best_stands_first_then_what_never_happened_then_what_was_not_measured() -> None:
    blank, never = replace(PEER, system="a"), replace(PEER, system="b", samples=(None, None, 1.0))
    slow, fast = replace(PEER, system="c", samples=(2.0,)), replace(OURS, samples=(1.0, None, 1.0))
    assert cells.group_by_row([blank, never, slow, fast]) == {OURS.row: [fast, slow, never, blank]}
    shares = [replace(PEER, unit="share", samples=(0.5,)), replace(OURS, unit="share", samples=(0.9,))]
    assert cells.group_by_row(shares)[OURS.row][0].ours


def test_rows_that_a_peer_wins_come_first() -> None:
    lost = [replace(OURS, row="pause", samples=(0.2,)), replace(PEER, row="pause", samples=(0.1,))]
    won = [replace(OURS, samples=(0.5,)), replace(PEER, samples=(1.0,)), replace(PEER, system="x", samples=(4.0,))]
    blank = [replace(OURS, row="nothing"), replace(PEER, row="nothing")]
    found = cells.find_standings([*won, *blank, *lost])
    assert [(one.row, one.is_peers, one.ratio) for one in found] == [("pause", True, 2.0), (OURS.row, False, 0.5)]
    alone = cells.find_standings([replace(PEER, samples=(1.0,)), OURS])[0]
    assert alone.is_peers
    assert alone.ratio is None


def make_board() -> cells.Board:
    made = (
        replace(OURS, samples=(0.05, 0.07, 0.06)),
        replace(PEER, samples=(1.0, None, 1.01), note="not in 75 s"),
        replace(PEER, system="DLRover defaults", settings="defaults", note="not installed"),
    )
    return cells.Board("a machine", "2026-11-22", 7, quick=True, loads=(1.0, 3.5), cells=made)


def test_a_board_survives_its_file() -> None:
    assert cells.Board.load(json.loads(json.dumps(make_board().dump()))) == make_board()


def test_the_page_states_the_machine_its_load_and_why_a_cell_is_empty() -> None:
    text = page.render_board(make_board())
    assert "2026-11-22, a machine, load 1.0 to 3.5, seed 7, `--quick`." in text
    best = "| SIGKILL: recovery | **ElasticJob: session**: 0.06 s (0.05 s to 0.07 s, 75%) |"
    assert f"{best} torchft tuned: 1.01 s (1.00 s to never, 75%) | 0.059 |" in text
    assert text.index("| torchft tuned | best") < text.index("Not measured: DLRover defaults (not installed).")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.123, "s", "0.12 s"),
        (75.2, "s", "75 s"),
        (None, "s", "never"),
        (0.9876, "share", "98.8%"),
        (4.25, "steps", "4.2"),
        (900, "bytes", "900 B"),
        (2048, "bytes", "2.0 KiB"),
        (5, "writes", "5"),
    ],
)
def test_values_have_the_format_of_their_unit(value: float | None, unit: cells.Unit, expected: str) -> None:
    assert page.format_sample(value, unit) == expected


def test_without_a_kept_run_the_block_names_the_command() -> None:
    assert page.render(None, "make it", as_matrix=False) == "Not measured yet: `make it` makes this table."


def test_one_table_has_a_row_for_each_event_and_a_column_for_each_system() -> None:
    made = (
        replace(PEER, row="SIGKILL: recovery", samples=(None, None, None)),
        replace(OURS, row="SIGKILL: recovery", samples=(0.05, 0.04, 0.06)),
        replace(OURS, row="SIGKILL: pause", samples=(0.05,)),
        replace(PEER, row="grow: recovery", samples=(3.0,)),
        replace(PEER, row="grow: pause", samples=(0.5,)),
        replace(OURS, row="goodput", unit="share", samples=(0.99,)),
        replace(PEER, row="nothing", note="not installed"),
    )
    board = replace(make_board(), cells=made, command="python -m benchmarks.scoreboard --only events")
    heading, summary, table, absent = page.render(board.dump(), "", as_matrix=True).split("\n\n")
    assert heading == "2026-11-22, a machine, load 1.0 to 3.5, seed 7: `python -m benchmarks.scoreboard --only events`."
    assert "| **ElasticJob: session**: 0.05 s (0.04 s to 0.06 s, 75%) | torchft tuned: never | – |" in summary
    assert table.splitlines() == [
        "| | ElasticJob: session | torchft tuned |",
        "|---|---|---|",
        "| SIGKILL | 0.05 s | never |",
        "| grow | – | 3.00 s (0.50 s) |",
        "| goodput | 99.0% | – |",
    ]
    assert absent == "Not measured: torchft tuned: nothing (not installed)."


def test_a_digest_has_some_rows_and_systems_under_other_names() -> None:
    made = (
        replace(PEER, row="SIGKILL: recovery", samples=(None, None, None)),
        replace(OURS, row="SIGKILL: recovery", samples=(0.05, 0.04, 0.06)),
        replace(OURS, row="SIGKILL: pause", samples=(0.07,)),
        replace(OURS, row="start: recovery", samples=(2.0,)),
    )
    digest = page.Digest(
        rows={"a pod is killed": ("SIGKILL: recovery",), "and the pause": ("SIGKILL: recovery", "SIGKILL: pause")},
        systems={"torchft": PEER.system, "session": OURS.system, "another": "not in this run"},
    )
    heading, _, *table = page.render_digest(replace(make_board(), cells=made).dump(), digest).splitlines()
    assert heading == "2026-11-22, a machine."
    assert table == [
        "| event | torchft | session | another |",
        "|---|---|---|---|",
        "| a pod is killed | never | 0.05 s | – |",
        "| and the pause | never | 0.05 s (0.07 s) | – |",
    ]


def test_a_table_without_peers_has_no_summary() -> None:
    board = replace(make_board(), cells=(replace(OURS, samples=(0.05,)),))
    assert "best of the other side" not in page.render(board.dump(), "", as_matrix=True)


@pytest.mark.parametrize(
    ("row", "unit", "ours", "limit", "expected"),
    [
        ("goodput", "share", 0.95, 0.9, "| goodput | 95.0% | session: 90.0% |"),
        ("goodput", "share", 0.95, 0.99, "| goodput | **95.0%** | session: 99.0% |"),
        ("grow: pause", "s", 0.5, 0.5, "| grow | 3.00 s (0.50 s) | session: pause 0.50 s |"),
        ("grow: pause", "s", 0.6, 0.5, "| grow | **3.00 s (0.60 s)** | session: pause 0.50 s |"),
        ("grow: pause", "s", None, 0.5, "| grow | **3.00 s (never)** | session: pause 0.50 s |"),
    ],
)
def test_a_cell_that_misses_its_goal_is_bold(
    row: str, unit: cells.Unit, ours: float | None, limit: float, expected: str
) -> None:
    whole = (replace(OURS, row="grow: recovery", samples=(3.0,)),) if row == "grow: pause" else ()
    board = replace(make_board(), cells=(*whole, replace(OURS, row=row, unit=unit, samples=(ours,))))
    assert page.render_matrix(board, [page.Goal((row,), (OURS.system,), limit)]).splitlines()[4:] == [expected]


FAST = Contestant("fast", defaults, "best")
SLOW = Contestant("slow", defaults, "defaults", start_seconds=40)
UNABLE = Contestant("unable", defaults, "best", lacks={cases.CASES[1].name: "cannot grow"})


def test_systems_take_turns_and_the_slow_ones_come_once_at_the_end() -> None:
    chosen, among = cases.CASES[:2], [FAST, SLOW, UNABLE]
    rounds, once = planning.plan_events(chosen, among, 2, random.Random(1))
    assert (rounds, once) == planning.plan_events(chosen, among, 2, random.Random(1))
    assert [task.case.name for task in rounds] == [chosen[0].name, chosen[0].name, chosen[1].name] * 2
    assert {task.contestant.name for task in rounds} == {"fast", "unable"}
    assert [(task.case.name, task.contestant.name) for task in once] == [(case.name, "slow") for case in chosen]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(cases.CASES[0], 4.0, id="a start"),
        pytest.param(cases.CASES[1], 6.5, id="an event, after the world has settled"),
        pytest.param(cases.COORDINATOR, 15.5, id="the time of observation"),
        pytest.param(cases.FENCE, 26.5, id="a node that sleeps"),
    ],
)
def test_the_time_of_a_measurement_is_estimated(case: cases.Case, expected: float) -> None:
    assert planning.estimate_seconds(planning.Task(case, FAST)) == expected


def test_the_quick_board_fits_into_ten_minutes() -> None:
    among = [one for one in CONTESTANTS if one.name not in command.LEFT_OUT]
    chosen = [case for case in cases.EVERY if case.name in command.QUICK_CASES]
    rounds, _ = planning.plan_events(chosen, among, 1, random.Random(1))
    series = sum(not one.is_slow and "goodput" not in one.lacks for one in among)
    groups = -(-series // measuring.AT_ONCE)
    rescales = [one for one in among if not one.is_slow and "bytes" not in one.lacks]
    seconds = sum(map(planning.estimate_seconds, rounds)) + groups * (60 + measuring.SERIES_SECONDS)
    seconds += sum(map(planning.estimate_rescale, rescales))
    seconds += sum(planning.estimate_rescale(one) for one in among if one.on_cluster)
    assert seconds < command.BUDGETS[0], "everything but the slow systems"
    assert command.BUDGETS[0] + max(case.bound for case in chosen) < 600


@dataclass
class Broken(Nodes):
    """A launcher whose program is missing."""

    name: str = "broken"

    def open(self, job: launchers.Job, wanted: int) -> None:
        raise RuntimeError("no such program\nand a traceback")

    def start_agent(self, node: int) -> float:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("one", "seconds", "note"),
    [
        pytest.param(Contestant("broken", Broken, "best"), 60, "failed: no such program", id="fails"),
        pytest.param(Contestant("broken", Broken, "best"), 1, measuring.TOO_LATE, id="no time is left"),
        pytest.param(
            Contestant("broken", Broken, "best", package="dlrover"),
            60,
            f"not installed: {peers.COMMAND}",
            id="not installed",
        ),
        pytest.param(
            Contestant("broken", Broken, "best", lacks={cases.CASES[0].name: "cannot"}), 60, "cannot", id="cannot"
        ),
    ],
)
def test_a_cell_that_did_not_run_says_why(tmp_path: Path, one: Contestant, seconds: float, note: str) -> None:
    board = cells.Board("a machine", "today", 1, quick=True)
    run = measuring.Measuring(board, tmp_path / "board.json", time.monotonic() + seconds, [one])
    run.run([cases.CASES[0]], missing={"dlrover"}, parts=["events"], repeats=1, minutes=1.0, kill_every=[])
    written = cells.Board.load(json.loads((tmp_path / "board.json").read_text()))
    assert written == run.board
    assert [(cell.row, cell.samples, cell.note) for cell in written.cells] == [
        ("start 2 below max: recovery", (), note)
    ]


def test_every_contestant_is_complete() -> None:
    pins = peers.parse_pins(peers.PINS.read_text())
    known = {case.name for case in cases.EVERY} | {"goodput", "bytes"}
    assert len({one.name for one in CONTESTANTS}) == len(CONTESTANTS)
    assert len({one.make().name for one in CONTESTANTS}) == len(CONTESTANTS)
    for one in CONTESTANTS:
        assert set(one.lacks) <= known, one.name
        assert one.package is None or one.package in pins, one.name
    assert {one.settings for one in CONTESTANTS if not one.ours} == {"best", "defaults"}


def test_only_writes_are_counted() -> None:
    requests = Counter({'code="200",resource="pods",verb="POST"': 1, 'code="200",resource="pods",verb="GET"': 5})
    assert sum(costs.only_writes(requests).values()) == 1


def test_the_meter_counts_both_directions_and_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(link.recv(100)[:3] * 2)

        thread = threading.Thread(target=answer)
        thread.start()
        meter = Meter()
        with socket.create_connection(("127.0.0.1", meter.forward("127.0.0.1", server.getsockname()[1]))) as client:
            client.sendall(b"hello")
            assert client.recv(100) + client.recv(100) == b"helhel"
        thread.join(30)
        meter.close()
    assert meter.total == 5 + 6
