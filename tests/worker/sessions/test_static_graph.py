"""DDP with a static graph does not bear `no_sync` in its first pass: it ends in an assertion of torch's own."""

from __future__ import annotations

import pytest

from worker.gang_helper import PROGRAMS, run_gang


@pytest.mark.parametrize("form", ["session", "plain"])
def test_gradients_of_a_static_graph_are_accumulated(form: str) -> None:
    one, two = run_gang(PROGRAMS / "static_program.py", 2, form, "static")
    plain, _ = run_gang(PROGRAMS / "static_program.py", 2, form, "not")
    assert one.results["weights"] == two.results["weights"]
    assert one.results["weights"] == pytest.approx(plain.results["weights"], abs=1e-6)
