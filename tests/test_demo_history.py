"""How the demo interprets the workers' lines: the same rules for restarts and for sessions."""

from __future__ import annotations

import pytest

from demo.training import History, Line


def history(*steps: tuple[float, int, int, int, int]) -> History:
    """Each step: time, generation, rank, size of the world, number."""
    return History([Line("step", f"pod-{rank}", g, rank, size, step, 0, t) for t, g, rank, size, step in steps])


GROWN = history((1, 1, 0, 1, 1), (2, 1, 0, 1, 2), (5, 2, 1, 2, 3), (6, 2, 0, 2, 3), (7, 2, 0, 2, 4))


def test_a_pause_lasts_from_the_old_worlds_last_step() -> None:
    assert GROWN.first_step_of_all(0, 2) == 6
    assert GROWN.pause_before(6) == 4
    assert GROWN.pause_before(2) == 0, "the first world interrupted nobody"


def test_a_step_of_the_old_world_is_no_recovery() -> None:
    late = history((1, 1, 0, 1, 1), (3, 2, 0, 1, 2))
    assert late.first_step_of_all(0.5, 1) == 1
    assert late.first_step_of_all(0.5, 1, newer_than=1) == 3


@pytest.mark.parametrize(("next_step", "repeated"), [(5, 0), (4, 1), (2, 3)])
def test_repeated_steps_are_counted(next_step: int, repeated: int) -> None:
    again = History([*GROWN.lines, Line("step", "pod-0", 3, 0, 1, next_step, 0, 9.0)])
    assert again.went_back() == repeated
