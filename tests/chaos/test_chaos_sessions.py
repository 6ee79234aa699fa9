"""Sessions under random schedules, the short form; `make chaos CHAOS_ARGS="--only sessions"` is the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.sessions import PLAIN, SHARDED, Program, check, make_schedule, run_trial
from torch_features import needs_fsdp_on_cpu

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("program", "seed"), [(PLAIN, 136), pytest.param(SHARDED, 3, marks=needs_fsdp_on_cpu)])
@pytest.mark.usefixtures("backend")
def test_any_schedule_keeps_the_state(program: Program, seed: int, tmp_path: Path) -> None:
    faults, wrong = run_trial(seed, 4, tmp_path, program=program)
    assert not wrong, "\n".join(wrong)
    assert faults == 4


def test_the_schedules_have_every_event() -> None:
    events = {event.kind for seed in range(10) for event in make_schedule(seed, 8)}
    assert events == {"grow", "shrink", "kill", "kill-two", "grow-and-kill", "shrink-and-kill", "crash"}
    assert make_schedule(3, 8) == make_schedule(3, 8)


def step(generation: int, number: int, rank: int, **changes: Any) -> dict[str, Any]:
    position = [(number + 1) // 20, (number + 1) % 20 * 48]
    return {"generation": generation, "step": number, "rank": rank, "hash": f"h{number}", "used": position} | changes


GOOD = [step(1, 0, 0), step(1, 0, 1), step(1, 1, 0), step(2, 1, 0), step(2, 1, 1), step(2, 2, 0), step(2, 2, 1)]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([], None),
        ([step(2, 3, 0), step(2, 3, 1, hash="other")], "parameters differ"),
        ([step(3, 1, 0)], "2 steps are repeated"),
        ([step(3, 4, 0)], "1 steps are missing"),
        ([step(2, 2, 0)], "made the steps"),
        ([step(2, 3, 0, used=[0, 48])], "is at sample"),
        ([{name: value for name, value in step(2, 3, 0).items() if name != "hash"}], None),
    ],
)
def test_the_checker_sees(more: list[dict[str, Any]], problem: str | None) -> None:
    wrong = check(GOOD + more)
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])
