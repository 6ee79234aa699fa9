"""Ranks that do not make the same steps: the script is told, in seconds, and no rank trains another model meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from side_by_side import together
from torch_features import needs_fsdp_on_cpu
from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("backend")]

AT_ONCE = 3  # see `side_by_side`: each has two ranks, which wait for each other
PROGRAM = PROGRAMS / "uneven_program.py"
SKIPPING = ["before", "between", "applying", "after", "inside", "inside-steps", "continue", "interrupt"]
LEAVING = ["break", "return"]  # out of the block and of the loop: a step is skipped first
STOPPING = ["short", "stop"]


def choose(hows: list[str], *short: str) -> list[Any]:
    """The others take the same ways through the code."""
    return [how if how in short else pytest.param(how, marks=pytest.mark.long) for how in hows]


def run(folder: Path, how: str, **variables: str) -> FakeAgent:
    with FakeAgent(PROGRAM, folder, HOW=how, **variables) as agent:
        agent.start(2)
        agent.run()
    return agent


def find_norms(agent: FakeAgent) -> dict[tuple[int, int], set[Any]]:
    """By generation and step, what the ranks have."""
    found: dict[tuple[int, int], set[Any]] = {}
    for row in agent.rows:
        found.setdefault((row["generation"], row["step"]), set()).add(row["norm"])
    return found


@pytest.mark.parametrize("how", choose([*SKIPPING, *LEAVING], "before", "applying", "inside-steps"))
@together
def test_a_step_that_one_rank_skips_ends_it_with_the_remedy(tmp_path: Path, how: str) -> None:
    agent = run(tmp_path, how)
    assert sorted(agent.ended) == [0, 1], "the other one goes on from its memory"
    assert agent.log.count("StepsDifferError: ") == 1 and "on all ranks or on none" in agent.log
    assert all(len(norms) == 1 for norms in find_norms(agent).values())
    assert max(step for _, step in find_norms(agent)) == 8


@pytest.mark.parametrize("how", choose(STOPPING, "stop"))
@together
def test_training_that_one_rank_ends_early_ends_it_with_the_remedy(tmp_path: Path, how: str) -> None:
    agent = run(tmp_path, how)
    assert sorted(agent.ended) == [0, 1]
    assert agent.log.count("StepsDifferError: ") == 1 and "the same number of steps" in agent.log
    assert all(len(norms) == 1 for norms in find_norms(agent).values())
    assert max(step for _, step in find_norms(agent)) == 8


@needs_fsdp_on_cpu
@pytest.mark.parametrize("how", choose(["before", "applying", "inside-steps", "stop"], "applying"))
@together
def test_it_is_told_of_a_sharded_model_too(tmp_path: Path, how: str) -> None:
    agent = run(tmp_path, how, KIND="sharded")
    assert 1 in agent.ended
    assert agent.log.count("StepsDifferError: ") == 1
    assert all(len(norms) == 1 for norms in find_norms(agent).values())


@pytest.mark.parametrize("how", choose([*SKIPPING, *LEAVING, *STOPPING, "slow"], "before", "slow"))
@together
def test_what_all_ranks_do_is_no_error(tmp_path: Path, how: str) -> None:
    agent = run(tmp_path, how, ALL="1")
    assert sorted(agent.ended) == [0, 0]
    found = find_norms(agent)
    assert all(len(norms) == 1 for norms in found.values())
    assert max(step for _, step in found) == (8 if how in (*SKIPPING, "slow") else 4 if how == "stop" else 3)
    assert "StepsDifferError" not in agent.log


@together
def test_an_error_that_ends_a_script_is_the_one_that_is_told(tmp_path: Path) -> None:
    """Its `finally` closes the session, which waits for nobody then."""
    agent = run(tmp_path, "finally")
    assert sorted(agent.ended) == [0, 1]
    assert "SkippedError: a bad sample" in agent.log and "StepsDifferError" not in agent.log


@pytest.mark.parametrize("kind", ["monitored", "sends"])
@together
def test_unequally_many_messages_are_no_unequal_steps(tmp_path: Path, kind: str) -> None:
    """Rank 0 sends to each of the others, or waits for them in `monitored_barrier`: each is counted as a collective."""
    with FakeAgent(PROGRAMS / "messages_program.py", tmp_path, SENDS=kind) as agent:
        agent.start(3)
        agent.run()
    assert agent.ended == [0, 0, 0], agent.log


@together
def test_a_loop_that_counts_its_epochs_is_told_how_to_end(tmp_path: Path) -> None:
    """A stream has no sampler that knows the epoch, so that a rank which joins begins with the first one."""
    with FakeAgent(PROGRAMS / "stream_program.py", tmp_path) as agent:
        agent.start(2)
        agent.wait(lambda: [row["step"] for row in agent.rows].count(5) == 2, "six steps")
        agent.let_join()
        agent.run()
    assert sorted(agent.ended) == [0, 1, 1], "the joiner trains on alone"
    assert agent.log.count("StepsDifferError: ") == 2
    assert agent.log.count("A loop that counts its epochs or steps itself begins anew in a process that joins") == 2
    assert agent.log.count("end it by session.committed, as in `while session.committed < last`") == 2
