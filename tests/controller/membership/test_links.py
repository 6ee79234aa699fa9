"""From measurements between nodes to the one that is at fault: the one that is common to the bad ones, or nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from controller.counted_work import count_lines
from elasticjob_operator.membership.links import Measure, find_bad, find_guilty

MEGABYTE = float(1 << 20)


def measured(nodes: str, **changes: object) -> list[Measure]:
    """Every pair of these nodes, all as good as each other."""
    good = Measure("", "", seconds=0.0002, bytes_per_second=400 * MEGABYTE)
    return [replace(good, first=a, second=b, **changes) for a, b in combinations(nodes, 2)]  # type: ignore[arg-type]


def spoil(measures: list[Measure], bad: str = "", pairs: tuple[str, ...] = (), **changes: object) -> list[Measure]:
    """The same, with changed links of the nodes in `bad`, and between the nodes of each of `pairs`."""
    changes = changes or {"bytes_per_second": 10 * MEGABYTE}
    among = {frozenset(pair) for pair in pairs}
    return [
        replace(one, **changes) if one.nodes & set(bad) or one.nodes in among else one  # type: ignore[arg-type]
        for one in measures
    ]


@pytest.mark.parametrize(
    ("measures", "guilty"),
    [
        pytest.param([], set(), id="nothing measured"),
        pytest.param(measured("abcd"), set(), id="all good"),
        pytest.param(spoil(measured("ab"), "b"), set(), id="2 nodes: nobody can say"),
        pytest.param(spoil(measured("ab"), "b", problem="no connection"), set(), id="2 nodes without a connection"),
        pytest.param(spoil(measured("abc"), "b"), {"b"}, id="3 nodes: one bad"),
        pytest.param(spoil(measured("abc"), pairs=("ab",)), set(), id="3 nodes: one slow link"),
        pytest.param(spoil(measured("abc"), "ab"), set(), id="3 nodes: two bad are no minority"),
        pytest.param(spoil(measured("abc"), "abc"), set(), id="3 nodes: all slow"),
        pytest.param(spoil(measured("abcd"), "c"), {"c"}, id="4 nodes: one bad"),
        pytest.param(spoil(measured("abcd"), pairs=("ab",)), set(), id="4 nodes: one slow link"),
        pytest.param(spoil(measured("abcd"), pairs=("ab", "cd")), set(), id="4 nodes: two slow links"),
        pytest.param(
            spoil(measured("abcd"), pairs=("ab", "ac")), set(), id="4 nodes: one with two slow links of three"
        ),
        pytest.param(spoil(measured("abcd"), "ab"), set(), id="4 nodes: two bad, as likely as the others"),
        pytest.param(spoil(measured("abcd"), "abcd"), set(), id="4 nodes: all slow"),
        pytest.param(spoil(measured("abcde"), "e"), {"e"}, id="5 nodes: one bad"),
        pytest.param(spoil(measured("abcde"), "ad"), {"a", "d"}, id="5 nodes: two bad"),
        pytest.param(spoil(measured("abcde"), "a", ("bc",)), {"a"}, id="5 nodes: one bad, and a slow link"),
        pytest.param(spoil(measured("abcde"), "abc"), set(), id="5 nodes: three bad"),
        pytest.param(spoil(measured("abcde"), "abcde"), set(), id="5 nodes: all slow"),
        pytest.param(spoil(measured("abcd"), "d", problem="no connection"), {"d"}, id="cannot be reached"),
        pytest.param(spoil(measured("abcd"), "d", seconds=0.05), {"d"}, id="long round trips"),
        pytest.param(spoil(measured("abcd"), "d", clock_seconds=-45.0), {"d"}, id="another clock"),
        pytest.param(spoil(measured("abcd"), "d", clock_seconds=20.0), set(), id="a clock that does no harm"),
        pytest.param(
            spoil(measured("abcd", bytes_per_second=900 * MEGABYTE), "d", bytes_per_second=120 * MEGABYTE),
            set(),
            id="much slower, and fast enough",
        ),
        pytest.param(spoil(measured("abcd"), "d", seconds=0.005), set(), id="longer round trips, and short enough"),
        pytest.param([*spoil(measured("abc"), "b"), *measured("ab")], set(), id="a pair that was good once is good"),
    ],
)
def test_the_node_that_is_common_to_the_bad_measurements_is_at_fault(measures: list[Measure], guilty: set[str]) -> None:
    assert set(find_guilty(measures)) == guilty
    turned = [replace(one, first=one.second, second=one.first) for one in reversed(measures)]
    assert set(find_guilty(turned)) == guilty, "whoever measured, and in whatever order"


def test_what_was_measured_is_said() -> None:
    assert find_guilty(spoil(measured("abcd"), "c")) == {
        "c": "10.0 MiB/s between a and c, 400.0 MiB/s elsewhere, and the same with b and d"
    }
    lone = spoil(measured("abcd"), pairs=("ab",), problem="no connection to 10.0.0.1: timed out")
    assert find_bad(lone) == {frozenset("ab"): "no connection to 10.0.0.1: timed out between a and b"}


def test_twice_the_nodes_cost_twice_the_steps() -> None:
    small, large = make_ring(200), make_ring(400)
    few, many = count_lines(lambda: find_guilty(small)), count_lines(lambda: find_guilty(large))
    assert many <= 2.4 * few


def make_ring(count: int) -> list[Measure]:
    """Each node with the next one; between no two of them there is a connection."""
    return [Measure(f"n{index}", f"n{(index + 1) % count}", problem="no connection") for index in range(count)]
