"""Jobs that are deleted, and that somebody's finalizer keeps: what they say stays true."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from elasticjob_devcluster import KubeError
from operator_fixture import MERGE, Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

KEEPER = "example.com/keeps"


@contextlib.contextmanager
def keep(jobs: Jobs, name: str) -> Iterator[None]:
    path = f"{jobs.path}/{name}"
    jobs.kube.request("PATCH", path, {"metadata": {"finalizers": [KEEPER]}}, content_type=MERGE)
    try:
        yield
    finally:
        with contextlib.suppress(KubeError):
            jobs.kube.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)


def test_a_deleted_job_without_its_pods_does_not_say_that_it_trains(jobs: Jobs) -> None:
    jobs.create("held", light_spec())
    jobs.await_world("held", 2)
    with keep(jobs, "held"):
        jobs.kube.request("DELETE", f"{jobs.path}/held?propagationPolicy=Foreground")
        wait_for(lambda: not jobs.pods("held"), "its pods are gone")
        told = wait_for(
            lambda: jobs.condition("held", "Running") if jobs.condition("held", "Running")["status"] == "False" else {},
            "it trains no more",
            timeout=20,
        )
        assert told["reason"] == "Terminating"
        assert KEEPER in told["message"]
        wait_for(lambda: not jobs.status("held").get("replicas"), "its pods are counted")
        status = jobs.status("held")
        assert (status["phase"], status["readyReplicas"], status["rendezvous"]["worldSize"]) == ("Pending", 0, 0)
    wait_for(lambda: not jobs.get("held"), "it is gone")


def test_a_deleted_job_whose_pods_stay_says_who_keeps_it(jobs: Jobs) -> None:
    """Kubernetes deletes the pods of a job when the job is gone."""
    jobs.create("held", light_spec())
    jobs.await_world("held", 2)
    with keep(jobs, "held"):
        jobs.kube.request("DELETE", f"{jobs.path}/held?propagationPolicy=Background")
        wait_for(lambda: KEEPER in jobs.condition("held", "Running").get("message", ""), "it is told", timeout=20)
        told = jobs.condition("held", "Running")
        assert (told["status"], told["reason"], jobs.status("held")["readyReplicas"]) == ("True", "Terminating", 2)
    wait_for(lambda: not jobs.get("held") and not jobs.pods("held"), "it is gone, and so are its pods")
