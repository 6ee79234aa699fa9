"""The exit status of a script is its own, whatever threads of the runtime still do when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

pytestmark = pytest.mark.timeout(100)
PROGRAM = PROGRAMS / "ending_program.py"
STATUS = {"well": 0, "exit": 3, "error": 1, "interrupt": -2}


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_an_abort_under_way_does_not_change_the_exit_status(tmp_path: Path, how: str) -> None:
    with FakeAgent(PROGRAM, tmp_path, BACKEND="fakenccl", FAKE_NCCL="abort=1.5", WHILE="abort", HOW=how) as agent:
        agent.start(3)
        agent.wait(lambda: any(one.poll() is not None for one in agent.ranks), "rank 2 to be killed")
        agent.tell(announced=False)
        agent.form()
        survivors = agent.ranks
        assert [one.wait(60) for one in survivors] == [STATUS[how]] * 2


@needs_fsdp_on_cpu
@pytest.mark.parametrize("how", ["well", "error"])
def test_a_copy_under_way_does_not_change_the_exit_status(tmp_path: Path, how: str) -> None:
    with FakeAgent(PROGRAM, tmp_path, BACKEND="gloo", WHILE="copy", HOW=how) as agent:
        agent.start(2)
        assert [one.wait(60) for one in agent.ranks] == [STATUS[how]] * 2
