"""Gradients that a script accumulates itself, in one block."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, run_gang


def test_a_pass_that_reduces_nothing_is_part_of_the_step() -> None:
    one, two = run_gang(PROGRAMS / "by_hand_program.py", 2)
    assert one.results == two.results
    assert one.results["reduced"] == 0
    (alone,) = run_gang(PROGRAMS / "by_hand_program.py", 1)
    assert one.results["weight"] == pytest.approx(alone.results["weight"], abs=1e-12)
