"""A job does not repeat its mistake: where the same error comes again, it starts from an older checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_fixture import Jobs
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch

PROGRAM = Path(__file__).parent / "programs/poisons.py"


def poisoned(directory: Path, *more: str) -> dict[str, Any]:
    command = ["torchrun", str(PROGRAM), str(directory), *more]
    return {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a/b:1", "command": command}]}},
    }


@pytest.mark.parametrize(("tier", "starts"), [("file", 2), ("memory", 3)])
@together
def test_a_checkpoint_that_stops_each_start_is_left_behind(jobs: Jobs, tmp_path: Path, tier: str, starts: int) -> None:
    """From step 15, again, and then from 10; with snapshots from 16, from the one before it, and then from 10."""
    jobs.create("poisoned", poisoned(tmp_path, tier))
    jobs.await_condition("poisoned", "Complete", timeout=180)
    status = jobs.status("poisoned")
    assert (status["restarts"]["user"], status["restarts"]["total"]) == (0, starts)
    assert status["restarts"]["alike"] == 0, "it has gone on beyond that step"
    told = [(world["who"].partition(", ")[2], world.get("firstStep")) for world in status["timeline"][1:]]
    asked = ["", "asked to leave out the newest checkpoint", "asked to leave out the 2 newest checkpoints"]
    assert [why for why, _ in told] == asked[:starts]
    assert told[-1][1] in range(11, 30), "the first one that was heard of"


@together
def test_an_error_that_comes_from_any_checkpoint_ends_the_job_with_its_place(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("poisoned", poisoned(tmp_path, "always"))
    failed = jobs.await_condition("poisoned", "Failed", timeout=180)
    assert failed["reason"] == "MaxRestartsExceeded"
    assert (
        "; FloatingPointError at poisons.py:38 4 times in a row, never beyond step 16, also from step "
        in failed["message"]
    )
