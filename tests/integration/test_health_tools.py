"""What other tools conclude from a job's status: `kubectl wait`, kstatus (Flux) and Argo CD.

They ask whether a condition was written for the present spec. Argo CD runs the script that is shipped beside the CRD.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lupa import lua51

import kstatus
from operator_fixture import ROOT, Jobs, light_spec, wait_for

pytestmark = pytest.mark.timeout(180)
SCRIPT = ROOT / "manifests/argocd/health.lua"


def find_generations(job: dict[str, Any]) -> set[int]:
    return {job["metadata"]["generation"], *(c.get("observedGeneration", 0) for c in job["status"]["conditions"])}


@pytest.mark.cluster
def test_each_condition_says_which_spec_it_is_about(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("observed", light_spec("--until", str(tmp_path / "done"), "--step-seconds", "0.05"))
    jobs.await_world("observed", 2)
    wait_for(lambda: len(find_generations(jobs.get("observed"))) == 1, "all are about the first spec")
    jobs.scale("observed", 3)
    jobs.await_world("observed", 3)
    wait_for(lambda: len(find_generations(jobs.get("observed"))) == 1, "all are about the second spec")
    (tmp_path / "done").touch()
    jobs.await_condition("observed", "Complete")
    assert len(find_generations(jobs.get("observed"))) == 1


def await_kstatus(jobs: Jobs, name: str, phase: str, expected: str) -> None:
    """Wait for a phase, and for what kstatus says of it."""

    def look() -> bool:
        job = jobs.get(name)
        is_there = (job.get("status") or {}).get("phase", "") == phase
        return is_there and kstatus.compute(job) == expected

    wait_for(look, f"{name} is {phase}, and {expected} for kstatus; it is {jobs.get(name).get('status')}")


@pytest.mark.cluster
def test_kstatus_of_a_job_that_trains_and_ends(jobs: Jobs, tmp_path: Path) -> None:
    jobs.create("trains", light_spec("--until", str(tmp_path / "done"), "--step-seconds", "0.05"))
    await_kstatus(jobs, "trains", "Running", kstatus.CURRENT)
    jobs.patch("trains", {"runPolicy": {"suspend": True}})
    await_kstatus(jobs, "trains", "Suspended", kstatus.CURRENT)
    jobs.patch("trains", {"runPolicy": {"suspend": False}})
    await_kstatus(jobs, "trains", "Running", kstatus.CURRENT)
    jobs.patch("trains", {"template": {"spec": {"restartPolicy": "Always"}}})
    await_kstatus(jobs, "trains", "Running", kstatus.FAILED)
    jobs.patch("trains", {"template": {"spec": {"restartPolicy": None}}})
    await_kstatus(jobs, "trains", "Running", kstatus.CURRENT)
    (tmp_path / "done").touch()
    await_kstatus(jobs, "trains", "Complete", kstatus.CURRENT)
    jobs.patch("trains", {"runPolicy": {"ttlSecondsAfterFinished": 3600}})
    await_kstatus(jobs, "trains", "Complete", kstatus.CURRENT)
    assert len(find_generations(jobs.get("trains"))) == 1, "`kubectl wait` believes no condition of another spec"


@pytest.mark.cluster
def test_kstatus_of_a_job_that_does_not_train(jobs: Jobs) -> None:
    spec = light_spec(managedBy="example.com/other")
    jobs.create("unseen", spec)
    assert kstatus.compute(jobs.get("unseen")) == kstatus.IN_PROGRESS, "nobody has looked at it yet"
    spec = light_spec()
    spec["template"]["spec"]["containers"][0]["image"] = "registry.invalid/no/such:image"
    jobs.create("pulls", spec)
    wait_for(lambda: jobs.condition("pulls", "Degraded").get("reason") == "ImagePullFailed", "it is told")
    await_kstatus(jobs, "pulls", "Pending", kstatus.IN_PROGRESS)
    spec = light_spec(runPolicy={"maxRestarts": 0})
    spec["template"]["spec"]["containers"][0]["command"] = ["false"]
    jobs.create("fails", spec)
    await_kstatus(jobs, "fails", "Failed", kstatus.FAILED)


def condition(type: str, reason: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": type, "status": status, "reason": reason, "message": message}


RUNNING = condition("Running", "WorldRunning", "generation 1 is training with 2 pods")
WAITING = condition("Running", "WaitingForPods", status="False")
BELOW = condition("Degraded", "BelowWanted", "1 of 2 requested pods are training")
PULL = condition("Degraded", "ImagePullFailed", "no such image")


@pytest.mark.parametrize(
    ("conditions", "phase", "observed", "health", "told"),
    [
        pytest.param(None, "", 0, "Progressing", "has not seen the job", id="new"),
        pytest.param([WAITING, BELOW], "Pending", 2, "Progressing", "WaitingForPods", id="starts"),
        pytest.param([WAITING, PULL], "Pending", 2, "Degraded", "ImagePullFailed: no such image", id="does not start"),
        pytest.param([RUNNING], "Running", 2, "Healthy", "is training", id="trains"),
        pytest.param([RUNNING, BELOW], "Running", 2, "Healthy", "is training", id="trains with fewer pods"),
        pytest.param([RUNNING, PULL], "Running", 2, "Degraded", "ImagePullFailed", id="cannot grow"),
        pytest.param([RUNNING], "Running", 1, "Progressing", "last change", id="has changed"),
        pytest.param([WAITING], "Rescaling", 2, "Progressing", "WaitingForPods", id="is rescaled"),
        pytest.param([condition("Suspended", "Suspended")], "Suspended", 2, "Suspended", "suspended", id="suspended"),
        pytest.param([condition("Complete", "Completed", "all")], "Complete", 2, "Healthy", "all", id="complete"),
        pytest.param(
            [PULL, condition("Failed", "CrashLoop", "x")], "Failed", 2, "Degraded", "CrashLoop: x", id="failed"
        ),
    ],
)
def test_health_in_argo_cd(
    conditions: list[dict[str, str]] | None, phase: str, observed: int, health: str, told: str
) -> None:
    lua = lua51.LuaRuntime()
    status = {"phase": phase, "observedGeneration": observed, "conditions": conditions}
    lua.globals().obj = lua.table_from({"metadata": {"generation": 2}, "status": status}, recursive=True)
    found = lua.execute(SCRIPT.read_text())
    assert (found["status"], told in found["message"]) == (health, True)
