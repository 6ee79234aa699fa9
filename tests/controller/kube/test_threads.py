"""While threads compute, the event loop goes on."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner

from elasticjob_operator import __main__ as program

pytestmark = pytest.mark.timeout(60)
# With 5 ms, answers to 500 agents that say something each second took 18 ms, and up to 115; with this, 0.8 ms.
SOON = 0.0005


@pytest.fixture
def interval() -> float:
    """For how long a thread keeps the interpreter when the event loop of an operator has begun."""
    before, limit = sys.getswitchinterval(), sys.getrecursionlimit()
    found = list[float]()

    def begin(coroutine: Coroutine[Any, Any, int]) -> int:
        coroutine.close()
        found.append(sys.getswitchinterval())
        return 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvloop, "run", begin)
        patched.setattr(program, "calm_collector", lambda: None)
        patched.setattr(program, "set_up_logging", lambda *_: None)
        result = CliRunner().invoke(program.main, ["run"])
    sys.setswitchinterval(before)
    sys.setrecursionlimit(limit)
    assert result.exit_code == 0, result.output
    return found[0]


def test_agents_do_not_wait_for_what_is_planned_in_threads(interval: float) -> None:
    """The loop asks for the interpreter whenever packets have arrived, and whoever computes keeps it for so long."""
    assert interval <= SOON
