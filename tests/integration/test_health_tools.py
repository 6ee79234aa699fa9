"""What other tools conclude from a job's status: `kubectl wait`, kstatus (Flux) and Argo CD.

They ask whether a condition was written for the present spec. Argo CD runs the script that is shipped beside the CRD.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import argocd
from elasticjob_operator import api
from operator_fixture import Jobs, OperatorProcess, light_spec, wait_for

pytestmark = pytest.mark.timeout(180)


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


KUBECTL = shutil.which("kubectl", path=os.pathsep.join(os.environ.get(k, "") for k in ("KUBEBUILDER_ASSETS", "PATH")))


@pytest.mark.cluster
@pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl, in KUBEBUILDER_ASSETS or PATH")
def test_kubectl_believes_no_condition_of_an_earlier_spec(jobs: Jobs, operator: OperatorProcess) -> None:
    def wait(condition: str, seconds: int) -> tuple[int, str]:
        """The exit status of `kubectl wait`, and what it has written."""
        told = [str(KUBECTL), f"--kubeconfig={jobs.cluster.kubeconfig}", f"--namespace={jobs.namespace}", "wait"]
        asked = [f"--for=condition={condition}", f"--timeout={seconds}s", "elasticjobs/waited"]
        done = subprocess.run([*told, *asked], check=False, capture_output=True, text=True, timeout=seconds + 60)
        return done.returncode, done.stdout + done.stderr

    jobs.create("waited", light_spec())
    assert wait("Running", 60) == (0, "elasticjob.elasticjob.dev/waited condition met\n")
    operator.stop()
    jobs.scale("waited", 3)
    code, said = wait("Running", 2)
    assert code == 1, said
    assert "timed out" in said, "nobody has looked at the new size yet"
    operator.start()
    assert wait("Running", 60)[0] == 0
    jobs.patch("waited", {"runPolicy": {"suspend": True}})
    assert wait("Suspended", 60)[0] == 0
    assert wait("Running=False", 10)[0] == 0


def condition(type: str, reason: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": type, "status": status, "reason": reason, "message": message}


RUNNING = condition("Running", "WorldRunning", "generation 1 is training with 2 pods")
WAITING = condition("Running", "WaitingForPods", status="False")
BELOW = condition("Degraded", "BelowWanted", "1 of 2 requested pods are training")
PULL = condition("Degraded", "ImagePullFailed", "no such image")
HIDDEN = condition("NoProgress", "MaybeHung", "look", status="Unknown")
STILL = condition("NoProgress", "NoStep", "no step for 600 s")
MOVES = condition("NoProgress", "NothingToTell", status="False")
QUEUED = condition("Admitted", "QuotaTooSmall", "raise it", status="False")
KEPT = condition("Warning", "PodHeld", "by x")


CASES = (
    pytest.param(None, "", 0, "Progressing", "has not seen the job", id="new"),
    pytest.param([WAITING, BELOW], "Pending", 2, "Progressing", "WaitingForPods", id="starts"),
    pytest.param([WAITING, PULL], "Pending", 2, "Degraded", "ImagePullFailed: no such image", id="does not start"),
    pytest.param([RUNNING], "Running", 2, "Healthy", "is training", id="trains"),
    pytest.param([RUNNING, BELOW], "Running", 2, "Healthy", "is training", id="trains with fewer pods"),
    pytest.param([RUNNING, PULL], "Running", 2, "Degraded", "ImagePullFailed", id="cannot grow"),
    pytest.param([RUNNING], "Running", 1, "Progressing", "last change", id="has changed"),
    pytest.param([RUNNING, HIDDEN], "Running", 2, "Healthy", "MaybeHung: look", id="may hang"),
    pytest.param([RUNNING, STILL], "Running", 2, "Healthy", "NoStep: no step for 600 s", id="makes no step"),
    pytest.param([RUNNING, MOVES], "Running", 2, "Healthy", "is training", id="makes steps again"),
    pytest.param([QUEUED], "Suspended", 2, "Suspended", "QuotaTooSmall: raise it", id="waits in a queue"),
    pytest.param([KEPT], "Suspended", 2, "Suspended", "PodHeld: by x", id="its pods are kept"),
    pytest.param(
        [condition("Complete", "Completed", "all"), KEPT], "Complete", 2, "Healthy", "PodHeld: by x", id="or then"
    ),
    pytest.param([WAITING], "Rescaling", 2, "Progressing", "WaitingForPods", id="is rescaled"),
    pytest.param([condition("Suspended", "Suspended")], "Suspended", 2, "Suspended", "suspended", id="suspended"),
    pytest.param([condition("Complete", "Completed", "all")], "Complete", 2, "Healthy", "all", id="complete"),
    pytest.param([PULL, condition("Failed", "CrashLoop", "x")], "Failed", 2, "Degraded", "CrashLoop: x", id="failed"),
)


@pytest.mark.parametrize(("conditions", "phase", "observed", "health", "told"), CASES)
def test_health_in_argo_cd(
    conditions: list[dict[str, str]] | None, phase: str, observed: int, health: str, told: str
) -> None:
    status = {"phase": phase, "observedGeneration": observed, "conditions": conditions}
    found, message = argocd.compute({"metadata": {"generation": 2}, "status": status})
    assert (found, told in message) == (health, True)


def test_no_phase_is_left_out() -> None:
    assert {*api.Phase} <= {case.values[1] for case in CASES}
