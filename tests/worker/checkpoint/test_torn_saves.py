"""A save that a loss has broken is made up for in the next world, whoever is left in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

PROGRAM = PROGRAMS / "torn_save_program.py"


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("dies", "twice"),
    [
        pytest.param("writing", False, id="the other one goes on"),
        pytest.param("writing", True, id="only one is left that has never begun it"),
        pytest.param("asking", False, id="nobody has begun it"),
    ],
)
def test_a_broken_save_is_made_in_the_next_world(tmp_path: Path, dies: str, twice: bool) -> None:
    variables = {"DIES": dies} | ({"TWICE": "1"} if twice else {})
    with FakeAgent(PROGRAM, tmp_path, **variables) as agent:
        agent.start(2)
        agent.wait(lambda: any(row.get("step") == 2 for row in agent.rows), "three steps")
        agent.join()
        agent.wait(lambda: agent.ranks[-1].pid in agent.idle, "the joiner")
        (tmp_path / "told").touch()
        agent.run()
        saved = [row["saved"] for row in agent.rows if "saved" in row]
    assert sorted(agent.ended) == ([0, 9, 9] if twice else [0, 0, 9])
    assert saved == [["step-00000005"]] * len(saved) and saved
