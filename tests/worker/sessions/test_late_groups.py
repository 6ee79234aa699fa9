"""A script adds groups of parameters to an optimizer while it trains, and ranks join, or are lost, after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("backend")]

LAST = 10


def train(folder: Path, how: str, joins: bool) -> FakeAgent:
    with FakeAgent(PROGRAMS / "late_groups_program.py", folder, HOW=how) as agent:
        agent.start(2)
        if joins:
            agent.wait(lambda: [row["step"] for row in agent.rows].count(6) == 2, "seven steps")
            agent.join()
            agent.wait(lambda: bool(agent.idle), "the joiner")
            agent.tell(announced=True)
        (folder / "told").touch()
        agent.run()
    return agent


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    agent = train(tmp_path_factory.mktemp("undisturbed"), "at", joins=False)
    return {row["step"]: row["weights"] for row in agent.rows}


@pytest.mark.parametrize("how", ["at", "flag"])
def test_a_rank_that_joins_later_trains_the_same_groups(
    tmp_path: Path, how: str, undisturbed: dict[int, list[float]]
) -> None:
    agent = train(tmp_path, how, joins=True)
    assert sorted(agent.ended) == [0, 0, 0]
    assert [row["step"] for row in agent.rows if row["generation"] == 2].count(LAST) == 3
    for row in agent.rows:
        assert row["weights"] == pytest.approx(undisturbed[row["step"]]), row


def test_a_step_that_adds_groups_can_be_repeated(tmp_path: Path, undisturbed: dict[int, list[float]]) -> None:
    agent = train(tmp_path, "kill", joins=False)
    assert sorted(agent.ended) == [-9, 0]
    for row in agent.rows:
        assert row["weights"] == pytest.approx(undisturbed[row["step"]]), row
