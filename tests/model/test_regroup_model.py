"""The protocol is safe for every order of events, each mistake is detected, and the code matches the model."""

from __future__ import annotations

import pytest

from model.explore import explore
from model.regroup_model import READY, RUNNING, STOPPING, Rules, Seat, decide
from model.replay import compare, compare_seat

pytestmark = [pytest.mark.timeout(300), pytest.mark.chaos]

SMALL = Rules(fault_budget=1, wanted=2)
# The third pod comes late, so that a world of two is about to start when it does.
HURRIED = Rules(fault_budget=2, eager=True)


@pytest.mark.parametrize("late", [False, True], ids=["all-there", "one-comes-late"])
def test_two_agents_and_every_single_fault(late: bool) -> None:
    found = explore(2, SMALL, late=late)
    assert found.states > 1_500
    assert not found.violations


@pytest.mark.parametrize(
    ("agents", "running", "rules"),
    [
        pytest.param(2, False, SMALL, id="min1-of-2"),
        pytest.param(3, True, Rules(fault_budget=1, min=2, wanted=3, eager=True), id="min2-of-3"),
    ],
)
def test_the_code_does_as_the_model_does(agents: int, running: bool, rules: Rules) -> None:
    found = explore(agents, rules, running=running)
    assert not found.violations
    differences = [f"{view}: {wrong}" for view in sorted(found.views) if (wrong := compare(view, decide(view, rules)))]
    assert not differences, f"{len(differences)} of {len(found.views)} differ, first:\n" + "\n".join(differences[:5])
    check_seats(found.seats)


def check_seats(seats: set[Seat]) -> None:
    """Every agent that the model came upon does in the code as it does in the model."""
    assert {seat.phase for seat in seats} == {READY, RUNNING, STOPPING}
    differences = [
        f"{seat} ({sessions=}, {rank=}): {wrong}"
        for seat in sorted(seats)
        for sessions in (False, True)
        for rank in (0, 1)
        if (wrong := compare_seat(seat, sessions=sessions, rank=rank))
    ]
    assert not differences, f"{len(differences)} of {4 * len(seats)} differ, first:\n" + "\n".join(differences[:5])


@pytest.mark.parametrize(
    ("agents", "rules"),
    [
        pytest.param(2, SMALL._replace(persist_first=False, fault_budget=2), id="announce-before-persist"),
        pytest.param(2, SMALL._replace(doubt=False, fault_budget=2), id="no-doubt"),
        pytest.param(3, HURRIED._replace(proof=False), id="no-proof"),
    ],
)
def test_a_mistake_is_found(agents: int, rules: Rules) -> None:
    """Breadth first: found long before all is seen."""
    assert explore(agents, rules, late=agents > 2).violations
