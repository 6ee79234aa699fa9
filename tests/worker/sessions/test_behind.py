"""What a script changes outside of any block, before a change of the world or in a joiner, is the same on all ranks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

PROGRAM = PROGRAMS / "behind_program.py"
STEPS = 9


def join(folder: Path, how: str, step: int) -> FakeAgent:
    """Two ranks train, and a third one joins before this step."""
    with FakeAgent(PROGRAM, folder, HOW=how, HOLD=str(step)) as agent:
        agent.start(2)
        agent.wait(lambda: any(row["step"] == step - 1 for row in agent.rows), "the steps before it")
        agent.let_join()
        agent.run()
    return agent


def collect(agent: FakeAgent, name: str) -> dict[int, list[Any]]:
    """By step, the different values of its ranks."""
    found: dict[int, list[Any]] = defaultdict(list)
    for row in agent.rows:
        if row[name] not in found[row["step"]]:
            found[row["step"]].append(row[name])
    return dict(sorted(found.items()))


@pytest.mark.timeout(200)
def test_a_rate_that_is_lowered_as_each_epoch_begins_is_that_of_the_others_in_a_joiner(tmp_path: Path) -> None:
    agent = join(tmp_path, "head", 4)
    assert agent.ended == [0, 0, 0]
    assert collect(agent, "rate") == {step: [0.1 * 0.5 ** (step // 3)] for step in range(STEPS)}
    assert all(len(sums) == 1 for sums in collect(agent, "sum").values())
    assert "'lr'" in agent.log and "Session(...)" in agent.log


@pytest.mark.timeout(200)
def test_parameters_that_a_joiner_freezes_are_trained_if_those_of_the_others_are(tmp_path: Path) -> None:
    agent = join(tmp_path, "frozen", 7)
    assert agent.ended == [0, 0, 0]
    assert all(len(those) == 1 for name in ("trains", "sum") for those in collect(agent, name).values())


@pytest.mark.timeout(200)
def test_weights_that_were_tried_and_put_back_are_no_change(tmp_path: Path) -> None:
    agent = join(tmp_path, "tried", 4)
    assert agent.ended == [0, 0, 0]
    assert all(len(sums) == 1 for sums in collect(agent, "sum").values())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("weights", "has changed '0.weight' since Session(...)"),
        ("counter", "trains with other settings ('lr') than rank 0"),
        ("scheduler", "trains with other settings ('lr') than rank 0"),
        ("barrier", "behind_program.py, line"),
        ("objects", "in its on_world, which all ranks call together"),
        ("checkpointer", "in its on_world, which all ranks call together"),
    ],
)
def test_a_joiner_that_would_train_another_model_ends_in_words(tmp_path: Path, how: str, told: str) -> None:
    """It makes no step, and the others go on."""
    agent = join(tmp_path, how, 4)
    assert sorted(agent.ended) == [0, 0, 1]
    assert told in agent.log
    assert all(len(sums) == 1 for sums in collect(agent, "sum").values())
    assert set(collect(agent, "sum")) == set(range(STEPS))


@pytest.mark.timeout(200)
def test_a_rate_that_is_lowered_behind_each_block_is_lowered_once_for_each_step(tmp_path: Path) -> None:
    """Also for one that a loss has broken, and that is made again."""
    with FakeAgent(PROGRAM, tmp_path, HOW="behind", LOST_STEP="4") as agent:
        agent.start(2)
        agent.run()
    assert sorted(agent.ended) == [0, 9]
    assert collect(agent, "rate") == {step: [pytest.approx(0.1 * 0.9**step)] for step in range(STEPS)}
