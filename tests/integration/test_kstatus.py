"""What kstatus, by which Flux waits, and Argo CD conclude from a job in each of its phases."""

from __future__ import annotations

from pathlib import Path

import pytest

import argocd
import kstatus
from operator_fixture import Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def await_health(jobs: Jobs, name: str, phase: str, expected: str, health: str) -> None:
    """Wait for a phase, and for what kstatus and Argo CD say of it."""

    def look() -> bool:
        job = jobs.get(name)
        is_there = (job.get("status") or {}).get("phase", "") == phase
        return is_there and (kstatus.compute(job), argocd.compute(job)[0]) == (expected, health)

    what = f"{name} is {phase}, {expected} for kstatus and {health} for Argo CD"
    wait_for(look, f"{what}; it is {jobs.get(name).get('status')}")


def test_kstatus_of_a_job_that_trains_and_ends(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("trains", light_spec("--until", str(tmp_path / "done"), "--step-seconds", "0.05"))
    await_health(jobs, "trains", "Running", kstatus.CURRENT, "Healthy")
    jobs.patch("trains", {"runPolicy": {"suspend": True}})
    await_health(jobs, "trains", "Suspended", kstatus.CURRENT, "Suspended")
    jobs.patch("trains", {"runPolicy": {"suspend": False}})
    await_health(jobs, "trains", "Running", kstatus.CURRENT, "Healthy")
    jobs.patch("trains", {"template": {"spec": {"restartPolicy": "Always"}}})
    await_health(jobs, "trains", "Running", kstatus.FAILED, "Degraded")
    jobs.patch("trains", {"template": {"spec": {"restartPolicy": None}}})
    await_health(jobs, "trains", "Running", kstatus.CURRENT, "Healthy")
    (tmp_path / "done").touch()
    await_health(jobs, "trains", "Complete", kstatus.CURRENT, "Healthy")
    jobs.patch("trains", {"runPolicy": {"ttlSecondsAfterFinished": 3600}})
    await_health(jobs, "trains", "Complete", kstatus.CURRENT, "Healthy")
    job = jobs.get("trains")
    generations = {c["observedGeneration"] for c in job["status"]["conditions"]}
    assert generations == {job["metadata"]["generation"]}, "`kubectl wait` believes no condition of another spec"


def test_kstatus_of_a_job_that_does_not_train(jobs: Jobs) -> None:
    spec = light_spec(managedBy="example.com/other")
    jobs.create("unseen", spec)
    unseen = jobs.get("unseen")
    assert kstatus.compute(unseen) == kstatus.IN_PROGRESS, "nobody has looked at it yet"
    assert argocd.compute(unseen)[0] == "Progressing"
    spec = light_spec()
    spec["template"]["spec"]["containers"][0]["image"] = "registry.invalid/no/such:image"
    jobs.create("pulls", spec)
    wait_for(lambda: jobs.condition("pulls", "Degraded").get("reason") == "ImagePullFailed", "it is told")
    await_health(jobs, "pulls", "Pending", kstatus.IN_PROGRESS, "Degraded")
    spec = light_spec(elasticPolicy={"maxRestarts": 0})
    spec["template"]["spec"]["containers"][0]["command"] = ["false"]
    jobs.create("fails", spec)
    await_health(jobs, "fails", "Failed", kstatus.FAILED, "Degraded")
