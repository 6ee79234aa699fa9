"""The same curve under random changes, the short form; `make chaos CHAOS_ARGS="--only curve"` is the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.curve import References, check, run_trial, run_worlds
from chaos.curve_worlds import plan
from elasticjob.torchcompat import sharding

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
def test_any_schedule_gives_the_same_curve_in_worlds_without_agents() -> None:
    found = list(run_worlds("--seed", "2", "--histories", "2", "--steps", "24", "--changes", "3"))
    assert [one["model"] for one in found] == ["fsdp", "cnn"]
    assert [one["violations"] for one in found] == [[], []]
    assert all(one["worlds"] > 1 and one["lines"] >= 24 for one in found)


def test_plans_differ_and_fit() -> None:
    plans = [plan(seed, 200) for seed in range(200)]
    assert len({one.events for one in plans}) == 200
    assert {one.size for one in plans} == {1, 2, 3, 4}
    assert {event.kind for one in plans for _, event in one.events} >= {
        "kill",
        "kill-two",
        "kill-all",
        "grow",
        "shrink",
    }
    assert all(0 < step < 195 for one in plans for step, _ in one.events)


@pytest.mark.parametrize(
    ("seed", "model"),
    [
        (137, "cnn"),
        pytest.param(138, "transformer", marks=pytest.mark.long),
        pytest.param(139, "fsdp", marks=pytest.mark.long),
    ],
)
def test_any_schedule_gives_the_same_curve(seed: int, model: str, tmp_path: Path) -> None:
    faults, wrong = run_trial(seed, 3, 20, References(tmp_path, size=1), tmp_path, model)
    assert not wrong, "\n".join(wrong)
    assert faults == 3


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {"step": number, "rank": 0, "world": 2, "generation": 1, "hash": f"h{number}", "loss": 0.5} | changes


REFERENCE = {number: (f"h{number}", 0.5) for number in range(5)}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([step(0), step(1), step(1, generation=2), step(2)], None),
        ([step(0), step(1, hash="other"), step(2)], "step 1, rank 0 of 2"),
        ([step(0), step(1, loss=0.25)], "step 1"),
        ([step(0), {key: value for key, value in step(1).items() if key != "hash"}, step(2)], None),
        ([step(0), step(3)], "the steps [1, 2]"),
        ([*(step(number) for number in range(5)), step(5)], "undisturbed None"),
    ],
)
def test_the_checker_sees(lines: list[dict[str, Any]], problem: str | None) -> None:
    wrong = check(lines, REFERENCE)
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])
