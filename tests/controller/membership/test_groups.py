"""Table of replica groups: who goes on at which rank, and who waits, when a world of several groups changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator.api import Layout
from elasticjob_operator.membership import groups

RANKS = [str(rank) for rank in range(16)]  # of the old world, one in each pod
INNER = Layout(4, 1, 4)  # dp, pp=2, tp=2: each four neighbours are a copy
OUTER = Layout(4, 2, 2)  # pp=2, dp, tp=2: as 0, 1, 8 and 9
ALONE = Layout()


def without(*lost: int) -> list[str]:
    return [one for one in RANKS if int(one) not in lost]


def form(staying: Sequence[str], joining: Sequence[str], size: int, layout: Layout) -> tuple[str, str]:
    """Who is in the next world, by rank, and who waits; no more than that are chosen, of survivors before joiners."""
    members = groups.choose(RANKS, staying, joining, size, layout)
    return " ".join(members), " ".join(one for one in (*staying, *joining) if one not in members)


@pytest.mark.parametrize(
    ("layout", "staying", "joining", "size", "world", "waiting"),
    [
        pytest.param(
            *(INNER, without(5), (), 12), "0 1 2 3 8 9 10 11 12 13 14 15", "4 6 7", id="a loss costs its group"
        ),
        pytest.param(
            *(OUTER, without(5), (), 12), "0 1 2 3 6 7 8 9 10 11 14 15", "4 12 13", id="and one with stages far away"
        ),
        pytest.param(
            *(INNER, without(5), ("a",), 16), "0 1 2 3 4 a 6 7 8 9 10 11 12 13 14 15", "", id="a spare has its place"
        ),
        pytest.param(
            *(OUTER, without(5), ("a", "b"), 16),
            *("0 1 2 3 4 a 6 7 8 9 10 11 12 13 14 15", "b"),
            id="a further one waits",
        ),
        pytest.param(
            *(INNER, without(0), ("a",), 16), "4 5 6 7 a 1 2 3 8 9 10 11 12 13 14 15", "", id="rank 0 is a survivor"
        ),
        pytest.param(
            *(OUTER, without(0), ("a",), 16), "2 3 a 1 4 5 6 7 10 11 8 9 12 13 14 15", "", id="also with stages"
        ),
        pytest.param(
            *(INNER, without(5, 10), (), 12),
            *("0 1 2 3 4 9 6 7 12 13 14 15", "8 11"),
            id="of two groups one goes on, with one of the other that had the same place",
        ),
        pytest.param(
            *(INNER, without(5, 9), (), 12), "0 1 2 3 4 8 6 7 12 13 14 15", "10 11", id="or else with any of it"
        ),
        pytest.param(
            *(INNER, without(4, 5, 10), (), 12),
            "0 1 2 3 8 9 6 11 12 13 14 15",
            "7",
            id="the one that lacks less goes on",
        ),
        pytest.param(
            *(INNER, without(4, 5, 6, 7), (), 12), "0 1 2 3 8 9 10 11 12 13 14 15", "", id="a whole group is lost"
        ),
        pytest.param(
            *(INNER, without(4, 5, 6, 7), ("a", "b", "c", "d"), 16),
            *("0 1 2 3 8 9 10 11 12 13 14 15 a b c d", ""),
            id="its successor comes last",
        ),
        pytest.param(*(INNER, RANKS, (), 8), "0 1 2 3 4 5 6 7", "8 9 10 11 12 13 14 15", id="the last groups wait"),
        pytest.param(
            *(OUTER, RANKS, (), 8), "0 1 2 3 8 9 10 11", "4 5 6 7 12 13 14 15", id="the last groups of all stages wait"
        ),
        pytest.param(
            *(OUTER, RANKS, ("a", "b", "c", "d"), 20),
            *("0 1 2 3 4 5 6 7 a b 8 9 10 11 12 13 14 15 c d", ""),
            id="a new group has ranks in each stage",
        ),
        pytest.param(*(INNER, ["5", "6", "7"], ("a",), 4), "5 a 6 7", "", id="the only group has lost its first"),
        pytest.param(
            *(ALONE, without(5), ("a",), 16),
            *("0 1 2 3 4 6 7 8 9 10 11 12 13 14 15 a", ""),
            id="without a mesh survivors keep their order, and joiners come last",
        ),
        pytest.param(
            *(Layout(3, 1, 3), without(5), ("a",), 15),
            *("0 1 2 3 4 6 7 8 9 10 11 12 13 14 15", "a"),
            id="a mesh that the last world had not",
        ),
    ],
)
def test_who_goes_on_and_who_waits(
    layout: Layout, staying: Sequence[str], joining: Sequence[str], size: int, world: str, waiting: str
) -> None:
    assert form(staying, joining, size, layout) == (world, waiting)


def test_the_nearest_joiner_has_the_place() -> None:
    world = ["a0", "a1", "b0", "b1"]
    places = {name: ("zone", name[0], name) for name in (*world, "a2", "b2", "c2")}
    members = groups.seat(world, ["a0", "b0", "b1", "c2", "b2", "a2"], Layout(2, 1, 2), places)
    assert members == ["a0", "a2", "b0", "b1", "c2", "b2"]


layouts = st.builds(lambda outer, inner: Layout(outer * inner, outer, inner), st.integers(1, 3), st.integers(1, 3))


@given(layout=layouts, data=st.data())
def test_nobody_changes_its_place_without_need(layout: Layout, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    world = [f"m{number}" for number in range(count * layout.pods)]
    staying = [one for one in world if data.draw(st.booleans())]
    joining = [f"j{number}" for number in range(data.draw(st.integers(0, 2 * layout.pods)))]
    size = (len(staying) + len(joining)) // layout.pods * layout.pods
    best = groups.sort_to_keep(world, frozenset(staying), size // layout.pods, layout)
    assert sorted(best) == sorted(staying)
    members = groups.choose(world, staying, joining, size, layout)
    assert sorted(members) == sorted([*best, *joining][:size])
    old, new = groups.split(world, layout), groups.split(members, layout)
    assert groups.merge(new, layout) == members
    whole = [group for group in old if set(group) <= set(staying)]
    assert all(group in new for group in whole[: len(new)]), "whole groups stay as they are"
    if set(members) & set(world):
        assert members[0] in world, "rank 0 is a survivor"
    kept = [group for group in old if set(group) & set(members)]
    if len(kept) <= len(new):  # none is given up
        own = {one: at for group in old for at, one in enumerate(group)}
        moved = [one for group in new for at, one in enumerate(group) if one in own and own[one] != at]
        assert len(moved) <= 1, "one, if rank 0 is lost and no other group has one in the first place"
