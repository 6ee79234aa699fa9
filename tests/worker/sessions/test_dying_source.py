"""The source of a state dies at each point of its transfer: what was trained is never lost to initial weights."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, run_gang

POINTS = range(-1, 13)  # operations of the dying rank; -1: it lives


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    """On a device. Over gloo, a receiver whose tensor has arrived in part may wait until its agent ends it."""
    points = ",".join(map(str, POINTS))
    (member,) = run_gang(PROGRAMS / "dying_source_program.py", 1, "device", points, timeout=240)
    return member.results


def test_the_points_reach_from_the_first_message_to_the_end(results: dict[str, object]) -> None:
    past = [point for point in POINTS if f"{point} past the end" in results]
    assert past and 3 < past[0] <= POINTS[-1], "there are enough points, and they hit the transfer"


def test_the_rest_goes_on_with_what_was_trained(results: dict[str, object]) -> None:
    for point in POINTS:
        for rank in range(0 if point < 0 else 1, 4):
            said = results[f"{point} {rank}"]
            assert isinstance(said, dict)
            assert (said["step"], said["trained"]) == (40, True), (point, said)


def test_a_joiner_has_a_step_only_with_the_state_of_it(results: dict[str, object]) -> None:
    for point in POINTS[1:]:
        for rank in (2, 3):
            said = results[f"{point} {rank}"]
            assert isinstance(said, dict)
            assert said["before"] in (-1, 40)
            if said["broke"] and f"{point} past the end" not in results:
                assert said["before"] == -1, (point, said)
