"""A script that adds parameters to the model of a session: no rank trains some of its own."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, run_gang


@pytest.mark.parametrize("how", ["plain", "unused", "virtual"])
def test_a_parameter_that_is_added_later_is_refused_before_a_step_with_it(how: str) -> None:
    one, two = run_gang(PROGRAMS / "growing_program.py", 2, how)
    assert one.results["weights"] == two.results["weights"]
    assert "make all parameters before" in one.results["error"].lower(), one.stderr
    assert one.results["steps"] == 2
