"""Random losses over a model of NCCL, the short form; `make chaos CHAOS_ARGS="--only devices"` is the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.devices import KINDS, References, check, plan, run_trial
from torch_features import needs_fsdp_on_cpu
from worker import fake_nccl

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [0, 2, 3, pytest.param(6, marks=needs_fsdp_on_cpu), 8, 13, 36])
def test_any_losses_leave_the_steps_of_an_undisturbed_run(seed: int, tmp_path: Path) -> None:
    wrong = run_trial(seed, tmp_path, References(tmp_path))
    assert not wrong, "\n".join(wrong)


def test_the_stories_differ_and_have_everything() -> None:
    stories = [plan(seed) for seed in range(200)]
    assert {one.kind for one in stories} == set(KINDS)
    points = {kill.rpartition(":")[2] for one in stories for kill in one.kills}
    assert points == {"forward", "micro", "backward", "applied", "halfway", "entering"}
    assert len(set(stories)) > 150
    assert {len(one.kills) for one in stories} == {1, 2}
    assert {(one.tell_apart > 0, one.tell_apart < 0) for one in stories} == {
        (False, False),
        (True, False),
        (False, True),
    }


def test_each_rank_draws_the_end_of_its_own_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fake_nccl.VARIABLE, "draw=3")
    found = []
    for rank in range(20):
        monkeypatch.setenv("RANK", str(rank))
        found.append(fake_nccl.Wants.read())
    assert {one.notices for one in found} == {-1.0, 0.0, 0.3}, "one rank notices before another"
    assert {one.abort for one in found} == {0.0, 5.0}


RIGHT = {0: 1.0, 1: 2.0}


@pytest.mark.parametrize(
    ("norms", "exactly", "problem"),
    [
        ([1.0, 2.0], True, None),
        ([1.0, 2.00000001], False, None),
        ([1.0, 2.00000001], True, "step 1, rank 0 of 2"),
        ([1.0, 2.1], False, "and undisturbed 2.0"),
        ([1.0], True, "no rank wrote the steps [1]"),
    ],
)
def test_the_checker_sees(norms: list[float], exactly: bool, problem: str | None) -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "norm": norm, "rank": 0, "size": 2, "generation": 1} for step, norm in enumerate(norms)
    ]
    wrong = check(rows, RIGHT, exactly)
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])
