"""A script that keeps its gradients as zeros: an optimizer steps with zeros, and leaves out what has no gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

PROGRAM = PROGRAMS / "zeros_program.py"


def read(agent: FakeAgent) -> dict[int, float]:
    """The weights after each step."""
    found: dict[int, list[float]] = {}
    for row in agent.rows:
        found.setdefault(row["step"], []).append(row["weight"])
    for step, weights in found.items():
        assert weights == pytest.approx([weights[0]] * len(weights), abs=1e-6), f"ranks differ after step {step}"
    return {step: weights[0] for step, weights in sorted(found.items())}


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[int, float]:
    with FakeAgent(PROGRAM, tmp_path / "alone") as agent:
        agent.start(1)
        agent.run()
        return read(agent)


@pytest.mark.parametrize("joined", [5, 6])
def test_a_joiner_steps_as_the_others(tmp_path: Path, undisturbed: dict[int, float], joined: int) -> None:
    folder = tmp_path / "joined"
    with FakeAgent(PROGRAM, folder, JOINED=str(joined)) as agent:
        agent.start(1)
        agent.wait(lambda: any(row["step"] == joined - 1 for row in agent.rows), "the first steps")
        agent.let_join()
        agent.run()
        assert read(agent) == pytest.approx(undisturbed, abs=1e-6)


@pytest.mark.parametrize("lost", [5, 6])
def test_a_step_that_is_made_again_steps_as_before(tmp_path: Path, undisturbed: dict[int, float], lost: int) -> None:
    with FakeAgent(PROGRAM, tmp_path / "lost", LOST=str(lost)) as agent:
        agent.start(2)
        agent.run()
        assert read(agent) == pytest.approx(undisturbed, abs=1e-6)
