"""Of the first objects of a namespace some bytes are free; what is larger, and what is more, shares a room."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from elasticjob_operator.shares import Berths

FREE, COUNT, CAPACITY = 10, 2, 100


def berths() -> Berths:
    return Berths(FREE, COUNT, CAPACITY)


@dataclass(frozen=True)
class Case:
    """Objects of one namespace that are kept, by name and size, and what is asked then."""

    kept: tuple[tuple[str, int], ...]
    name: str
    size: int
    fits: bool


CASES = [
    pytest.param(Case((), "a", FREE, fits=True), id="free"),
    pytest.param(Case((), "a", FREE + 50, fits=True), id="half of the room"),
    pytest.param(Case((), "a", FREE + 51, fits=False), id="more than half"),
    pytest.param(Case((("a", 1), ("b", 1)), "c", 50, fits=True), id="the third, of which nothing is free"),
    pytest.param(Case((("a", 1), ("b", 1)), "c", 51, fits=False), id="the third, with what is free of others"),
    pytest.param(Case((("a", FREE + 30),), "b", FREE + 21, fits=False), id="no room beside another"),
    pytest.param(Case((("a", FREE + 30),), "b", FREE + 20, fits=True), id="room beside another"),
    pytest.param(Case((("a", FREE + 50),), "a", FREE + 50, fits=True), id="in place of what it was"),
    pytest.param(Case((("a", FREE + 50),), "b", FREE, fits=True), id="the room is full, and this takes none"),
]


@pytest.mark.parametrize("case", CASES)
def test_what_fits(case: Case) -> None:
    held = berths()
    for name, size in case.kept:
        assert held.put(("team", name), size)
    key = ("team", case.name)
    if key[1] not in dict(case.kept):
        assert held.has_room(key, case.size) is case.fits
    assert held.put(key, case.size) is case.fits


def test_what_has_no_room_keeps_what_it_had() -> None:
    held = berths()
    assert held.put(("team", "a"), FREE + 40)
    assert not held.put(("team", "a"), FREE + 60)
    assert not held.put(("team", "b"), FREE + 20)
    held.clear(("team", "a"))
    assert held.put(("team", "b"), FREE + 50)


def test_a_namespace_that_has_nothing_has_room_beside_one_that_has_its_half() -> None:
    held = berths()
    assert held.put(("greedy", "a"), FREE + 50)
    assert not held.put(("greedy", "b"), FREE + 1)
    assert held.put(("modest", "a"), FREE + 20)


def test_all_that_was_kept_fits_again_in_any_order() -> None:
    before = {("greedy", "a"): FREE + 49, ("modest", "a"): FREE + 25, ("third", "a"): FREE + 12}
    first = berths()
    assert all(first.put(key, size) for key, size in before.items())
    for order in (before, reversed(before)):
        again = berths()
        assert all(again.put(key, before[key], again=True) for key in order)


def test_one_that_goes_leaves_its_room_and_its_place_among_the_first() -> None:
    held = berths()
    for name in ("a", "b", "c"):
        assert held.put(("team", name), 10)
    assert held.is_shared(("team", "c"), 10)
    held.leave(("team", "a"))
    held.leave(("team", "a"))
    assert held.has_room(("team", "c"), FREE + 50)
    assert held.put(("team", "c"), 10)
    assert not held.is_shared(("team", "c"), 10)
    assert held.put(("team", "d"), 50)
