"""The replay of spot interruptions: what is drawn, read and planned. Pure functions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import spot
from benchmarks.spot import Change, Interruption


def test_a_day_is_drawn_at_the_stated_rate_and_no_node_goes_while_it_is_away() -> None:
    days = [spot.draw(seed, 24.0) for seed in range(200)]
    assert days[0] == spot.draw(0, 24.0) != days[1]
    # Each node is there for all but the quarter of an hour after each interruption.
    per_day = 24 * spot.PER_HOUR / (1 + spot.PER_HOUR * spot.AWAY_SECONDS / 3600) * spot.NODES
    assert sum(map(len, days)) / len(days) == pytest.approx(per_day, rel=0.05)
    for day in days:
        assert all(0 <= one.at < 24 * 3600 for one in day)
        for node in range(spot.NODES):
            own = [one for one in day if one.node == node]
            assert all(before.at + before.away <= after.at for before, after in pairwise(own))


def test_a_short_trace_has_an_interruption() -> None:
    assert all(spot.draw(seed, 0.01) for seed in range(20))


def test_a_replay_begins_with_the_notice() -> None:
    trace = spot.compress([Interruption(0.0, 1, 600.0), Interruption(1200.0, 0, 60.0)], 60.0)
    assert spot.plan(trace) == [
        Change(0.0, "notice", 1),
        Change(20.0, "notice", 0),
        Change(25.0, "go", 1),
        Change(35.0, "come", 1),
        Change(45.0, "go", 0),
        Change(46.0, "come", 0),
    ]


def test_traces_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,node,away\n100,i-1,50\n200,i-2,\n120,i-1,50\n")
    (tmp_path / "b.csv").write_text("time,node\n10,x\n")
    assert spot.read_traces(tmp_path) == [
        Interruption(100.0, 0, 50.0),  # i-1 cannot go again before it is back
        Interruption(200.0, 1, spot.AWAY_SECONDS),
        Interruption(200.0 + spot.AWAY_SECONDS + 10.0, 0, spot.AWAY_SECONDS),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("time,node\nsoon,x\n", "a.csv:2: time is 'soon': give seconds", id="time"),
        pytest.param("node\nx\n", "a.csv:2: time is '': give seconds", id="no time"),
        pytest.param("time,node,away\n1,x,1\n2,x,-3\n", "a.csv:3: away is '-3': give seconds", id="away"),
        pytest.param("time,node\nnan,x\n", "a.csv:2: time is 'nan'", id="nan"),
        pytest.param("time,node\n1,\n", "a.csv:2: node is empty", id="node"),
    ],
)
def test_a_wrong_trace_is_an_error_that_names_the_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SystemExit, match=problem):
        spot.read_traces(tmp_path)


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no \*\.csv"):
        spot.read_traces(tmp_path)
