"""A session's optimizers train parameters that are of no module that the session knows, such as weights of losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("backend")]

PROGRAM = PROGRAMS / "loose_program.py"
STEPS = 12


def test_a_rank_that_joins_gets_them(tmp_path: Path) -> None:
    with FakeAgent(PROGRAM, tmp_path / "undisturbed", HOW="script") as agent:
        agent.start(2)
        (tmp_path / "undisturbed/told").touch()
        agent.run()
    undisturbed = {row["step"]: row["weights"] for row in agent.rows}
    with FakeAgent(PROGRAM, tmp_path / "joined", HOW="script") as agent:
        agent.start(2)
        agent.wait(lambda: [row["step"] for row in agent.rows].count(5) == 2, "six steps")
        agent.let_join(RANK_SEED="5")
        agent.run()
    assert sorted(agent.ended) == [0, 0, 0]
    assert [row["step"] for row in agent.rows if row["generation"] == 2].count(STEPS - 1) == 3
    for row in agent.rows:
        assert row["weights"] == pytest.approx(undisturbed[row["step"]]), row


def test_all_ranks_begin_with_the_same(tmp_path: Path) -> None:
    with FakeAgent(PROGRAM, tmp_path, HOW="script") as agent:
        agent.start(1, RANK_SEED="1")
        agent.wait(lambda: bool(agent.rows), "a step")
        agent.let_join(RANK_SEED="2")
        agent.run()
    last = [row["weights"] for row in agent.rows if row["step"] == STEPS - 1]
    assert len(last) == 2
    assert last[0] == last[1]


def test_virtual_ranks_refuse_them_before_the_first_step(tmp_path: Path) -> None:
    """They add up the gradients of the model alone."""
    with FakeAgent(PROGRAM, tmp_path, HOW="session") as agent:
        agent.start(2)
        agent.wait(lambda: not agent.living or bool(agent.rows), "an end, or a step")
    assert not agent.rows
    assert "ConfigurationError: Adam trains parameters that are not of the session's model" in agent.log
