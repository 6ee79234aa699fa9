"""The source of a state dies anywhere in its transfer: what was trained is never lost to initial weights."""

from __future__ import annotations

import random
from typing import Any

import pytest

from worker.gang_helper import PROGRAMS, run_gang

CALLS = [str(call) for call in range(-1, 11)]  # of the dying rank; -1: it lives
_dice = random.Random(7)
BYTES = [f"{_dice.random():.4f}" for _ in range(5)]  # parts of what it sends

Results = dict[str, Any]


@pytest.fixture(scope="module", params=["host", "device"])
def results(request: pytest.FixtureRequest) -> Results:
    points = ",".join([*CALLS, *BYTES])
    (member,) = run_gang(PROGRAMS / "dying_source_program.py", 1, request.param, points, timeout=300)
    return member.results


def test_the_points_reach_from_the_first_message_to_the_end(results: Results) -> None:
    past = [int(call) for call in CALLS if f"{call} past the end" in results]
    assert past and 3 < past[0] <= int(CALLS[-1]), "there are enough points, and they hit the transfer"
    assert any(results[f"{part} {rank}"]["before"] == -1 for part in BYTES for rank in (2, 3))


def test_the_rest_goes_on_with_what_was_trained(results: Results) -> None:
    for point in [*CALLS, *BYTES]:
        for rank in range(0 if point == "-1" else 1, 4):
            said = results[f"{point} {rank}"]
            assert (said["step"], said["trained"]) == (40, True), (point, rank, said)


def test_a_rank_has_a_step_only_with_the_state_of_it(results: Results) -> None:
    for point in [*CALLS[1:], *BYTES]:
        for rank in (1, 2, 3):
            said = results[f"{point} {rank}"]
            assert said["before"] in (-1, said["had"]), (point, rank, said)
            if rank > 1 and said["broke"] and point in CALLS and f"{point} past the end" not in results:
                assert said["before"] == -1, (point, rank, said)
