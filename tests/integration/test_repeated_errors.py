"""A job does not repeat its mistake: where the same error comes again, it starts from an older checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob.archive import reading
from elasticjob.archive.storage import Storage
from elasticjob_devcluster.local import localize
from operator_fixture import Jobs, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AT_ONCE = 3  # see `side_by_side`: each has processes that import torch

PROGRAM = Path(__file__).parent / "programs/poisons.py"
ALONE = PROGRAM.with_name("poisons_alone.py")


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


@pytest.mark.parametrize("tier", ["copies", "archive"])
@together
def test_the_checkpoint_before_comes_from_other_pods_or_the_archive_as_well(
    jobs: Jobs, tmp_path: Path, tier: str
) -> None:
    """The pod with the files is lost when the same error has come twice, or all pods are: what is left out is left out
    of what the others have, or the archive."""
    command = ["torchrun", str(ALONE), "/checkpoints", str(tmp_path)]
    container = {"name": "trainer", "image": "a/b:1", "command": command}
    spec: dict[str, Any] = {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3},
        "checkpoints": {"path": "/checkpoints", "replicas": 1, "sizeLimit": "64Mi"},
        "template": {"spec": {"containers": [container]}},
    }
    store = tmp_path / "store"
    store.mkdir()
    if tier == "archive":
        spec["checkpoints"]["archive"] = {"to": "file:///archive", "everySeconds": 1}
        spec = localize({"spec": spec}, {"/archive": store})["spec"]
    jobs.create("alone", spec)
    wait_for((tmp_path / "asked").exists, "the same error has come twice", timeout=180)
    status = jobs.status("alone")
    if tier == "archive":
        place = Storage(f"file://{store}{status['archive']['url'].removeprefix('file:///archive')}")
        wait_for(
            lambda: "step-00000015.pt" in reading.find_saves(place)[0][1].record.files, "the last file is there", 60
        )
    first, second = read_starts(tmp_path)
    assert (first[1:3], second[1:3]) == (["0", "0"], ["15", "0"])
    lost = [pod["metadata"] for pod in jobs.pods("alone") if tier == "archive" or pod["metadata"]["uid"] == second[3]]
    for pod in lost:
        path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['name']}"
        jobs.cluster.kube.request("DELETE", path, {"gracePeriodSeconds": 0})
    after = jobs.await_world("alone", 2, above=status["rendezvous"]["generation"], timeout=120)
    assert not {pod["uid"] for pod in lost} & {member["uid"] for member in after["rendezvous"]["members"]}
    (tmp_path / "go").touch()
    jobs.await_condition("alone", "Complete", timeout=120)
    last = read_starts(tmp_path)[-1]
    assert int(last[0]) >= after["rendezvous"]["generation"]
    assert last[1:3] == ["10", "2"], "the newest one is left out"


def read_starts(directory: Path) -> list[list[str]]:
    """Of each world in which rank 0 has started: the generation, its first step, how often the error came, the pod."""
    return [line.split() for line in (directory / "starts").read_text().splitlines()]
