"""An optimizer computes its gradients by itself: it has none when its step begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS


@pytest.mark.usefixtures("backend_if_long")
def test_the_first_step_of_a_joiner_counts_as_that_of_the_others(tmp_path: Path) -> None:
    with FakeAgent(PROGRAMS / "closure_program.py", tmp_path) as agent:
        agent.start(1)
        agent.wait(lambda: any(row["step"] == 4 for row in agent.rows), "five steps")
        agent.join()
        agent.wait(lambda: bool(agent.idle), "the joiner")
        agent.tell(announced=True)
        Path(tmp_path, "told").touch()
        agent.run()
    assert agent.ended == [0, 0]
    assert len({(row["step"], row["weight"]) for row in agent.rows}) == 10, "the ranks have the same weights"
    assert {row["world"] for row in agent.rows if row["step"] == 9} == {2}


@pytest.mark.usefixtures("backend_if_long")
def test_a_rank_whose_closure_makes_no_gradients_is_told(tmp_path: Path) -> None:
    """The other one goes on from memory, though it was inside of the optimizer's step when that rank ended."""
    with FakeAgent(PROGRAMS / "closure_program.py", tmp_path, SKIPS="yes") as agent:
        agent.start(2)
        agent.run()
    assert "StepsDifferError: rank 1 has left block 6" in agent.log
    assert "interrupted while it applied a step" not in agent.log
    assert len({(row["step"], row["weight"]) for row in agent.rows}) == 10, "the ranks had the same weights"
    assert {row["world"] for row in agent.rows if row["step"] > 4} == {1}


@pytest.mark.usefixtures("backend_if_long")
def test_a_loss_in_a_closure_costs_no_memory_of_a_model_with_frozen_parameters(tmp_path: Path) -> None:
    """They are put back with the others, and so they seem to have changed."""
    with FakeAgent(PROGRAMS / "closure_program.py", tmp_path, DIES="yes") as agent:
        agent.start(2)
        agent.run()
    assert "interrupted while it applied a step" not in agent.log
    assert sorted(agent.ended) == [0, 9]
    assert [row["step"] for row in agent.rows if row["world"] == 1] == [*range(5, 10)]
