"""A loss in an evaluation, or after one, leaves the model of a session in train mode, with gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent

PROGRAM = Path(__file__).parents[1] / "programs" / "evaluation_program.py"

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("kind", ["plain", "buffers", "sent", "virtual"])
@pytest.mark.parametrize("where", ["block", "outside", "step"])
def test_the_survivors_of_a_loss_train_on(tmp_path: Path, where: str, kind: str) -> None:
    with FakeAgent(PROGRAM, tmp_path, WHERE=where, WITH=kind) as agent:
        agent.start(3)
        agent.run()
    assert sorted(agent.ended) == [-9, 0, 0]
    assert all(row["trains"] and row["records"] for row in agent.rows)
    assert {(row["world"], row["step"]) for row in agent.rows if row["step"] > 4} == {(2, n) for n in range(5, 13)}
