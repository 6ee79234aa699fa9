"""What a script does once in a step is done once, whatever a loss breaks: drawing random numbers, lowering a rate."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

PROGRAM = PROGRAMS / "draws_program.py"
STEPS, EPOCHS = 9, 3


def find_drawn(agent: FakeAgent) -> list[list[float]]:
    """Until the last step, by each rank that has made it."""
    found = [row["drawn"] for row in agent.rows if row["step"] == STEPS - 1]
    assert found and all(one == found[0] for one in found), agent.rows
    drawn: list[list[float]] = found[0]
    return drawn


def list_numbers(count: int) -> list[list[float]]:
    """The first ones of the script's seed."""
    python, of_numpy = random.Random(11), numpy.random.RandomState(11)
    return [[python.random(), float(of_numpy.rand())] for _ in range(count)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_joiner_whose_first_step_is_broken_draws_as_those_whose_state_it_has(tmp_path: Path, ranks: int) -> None:
    """If it has that of the only one, and that one is lost, nobody else knows."""
    with FakeAgent(PROGRAM, tmp_path, LOST="2", WAITS="1") as agent:
        agent.start(ranks)
        agent.wait(lambda: any(row["step"] == 1 for row in agent.rows), "two steps")
        agent.let_join()
        agent.run()
        drawn = find_drawn(agent)
    assert sorted(agent.ended) == [0] * ranks + [9]
    assert drawn == list_numbers(STEPS)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("between", "step"), [("epochs", 3), ("steps", 3), ("steps", 4)])
def test_what_was_drawn_between_two_steps_is_not_drawn_again(tmp_path: Path, between: str, step: int) -> None:
    with FakeAgent(PROGRAM, tmp_path, LOST_STEP=str(step), WHO="1", BETWEEN=between) as agent:
        agent.start(2)
        agent.run()
        drawn = find_drawn(agent)
    assert sorted(agent.ended) == [0, 9]
    assert drawn == list_numbers(STEPS + {"epochs": EPOCHS, "steps": STEPS}[between] - 1)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["before", "inside", "behind"])
def test_a_rate_that_is_lowered_in_each_step_is_lowered_once_in_each(tmp_path: Path, place: str) -> None:
    with FakeAgent(PROGRAM, tmp_path, LOST_STEP="4", WHO="1", RATE=place) as agent:
        agent.start(2)
        agent.run()
        rates = {row["step"]: row["rate"] for row in agent.rows}
    assert sorted(agent.ended) == [0, 9]
    assert rates == pytest.approx({step: 0.1 * 0.9 ** (step + (place != "behind")) for step in range(STEPS)})
