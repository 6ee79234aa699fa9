"""A script changes trained weights for some passes and puts them back: adversarial training, averages to evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

PROGRAM = PROGRAMS / "attack_program.py"


def run(folder: Path, ranks: int, **variables: str) -> tuple[dict[int, float], list[int]]:
    """The weight after each step, and how the ranks have ended."""
    with FakeAgent(PROGRAM, folder, **variables) as agent:
        agent.start(ranks)
        agent.run()
        found: dict[int, set[float]] = {}
        for row in agent.rows:
            found.setdefault(row["step"], set()).add(row["weight"])
    assert all(len(those) == 1 for those in found.values()), found
    return {step: weight for step, (weight,) in sorted(found.items())}, agent.ended


@pytest.mark.parametrize("how", ["copied", "assigned", "counted", "evaluation"])
def test_weights_are_put_back_after_a_loss(tmp_path: Path, how: str) -> None:
    weights, ended = run(tmp_path / "lost", 2, HOW=how, LOST="5")
    undisturbed, _ = run(tmp_path / "alone", 1, HOW=how)
    assert weights == pytest.approx(undisturbed, abs=1e-6)
    assert sorted(ended) == [0, 9]


@pytest.mark.parametrize("lost", [0, 5])
def test_a_rate_that_is_lowered_before_the_pass_is_lowered_once(tmp_path: Path, lost: int) -> None:
    weights, ended = run(tmp_path / "lost", 2, HOW="rate", LOST=str(lost))
    weights.pop(-1, None)  # before the first step
    undisturbed, _ = run(tmp_path / "alone", 1, HOW="rate")
    assert weights == pytest.approx(undisturbed, abs=1e-6)
    assert sorted(ended) == [0, 9]


@pytest.mark.parametrize("how", ["copied", "assigned", "counted", "evaluation"])
def test_a_rank_that_cannot_put_them_back_goes_to_its_checkpoint(tmp_path: Path, how: str) -> None:
    """In the first step that changes them, nobody knows yet that they have to be kept."""
    weights, ended = run(tmp_path, 2, HOW=how, LOST="0")
    assert sorted(ended) == [1, 9] and max(weights) <= 0
