"""Two writers who fight about the size of a job are told of each other: each sees only that its value does not stay."""

from __future__ import annotations

import pytest

from operator_fixture import APPLY, MERGE, Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def apply_size(jobs: Jobs, name: str, replicas: int) -> None:
    """As GitOps does, which takes the field back."""
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "spec": {"replicas": replicas}}
    path = f"{jobs.path}/{name}?fieldManager=gitops&force=true"
    jobs.kube.request("PATCH", path, {**body, "metadata": {"name": name}}, content_type=APPLY)


def is_seen(jobs: Jobs, name: str) -> bool:
    """Whether the operator has seen the last change."""
    job = jobs.get(name)
    return bool(job.get("status", {}).get("observedGeneration") == job["metadata"]["generation"])


def scale(jobs: Jobs, name: str, replicas: int) -> None:
    """As an autoscaler does. Not by the subresource: old API servers do not note who writes that."""
    path = f"{jobs.path}/{name}?fieldManager=autoscaler"
    jobs.kube.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)


def live_pods(jobs: Jobs, name: str) -> list[str]:
    """The pods whose trainer runs, and which stay."""
    pods = [p for p in jobs.pods(name) if "deletionTimestamp" not in p["metadata"]]
    return [p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"]


def test_writers_who_fight_about_the_size_are_named(jobs: Jobs) -> None:
    jobs.create("fought", light_spec(replicas=1))
    jobs.await_world("fought", 1)
    for _ in range(3):  # the operator has to see each change: it takes those together that come at once
        scale(jobs, "fought", 2)
        wait_for(lambda: is_seen(jobs, "fought"), "it is seen")
        apply_size(jobs, "fought", 1)
        wait_for(lambda: is_seen(jobs, "fought"), "it is seen")
    told = wait_for(lambda: [m for r, m in jobs.events("fought") if r == "SizeContested"], "it is told")
    assert len(told) == 1
    assert "gitops (to 1)" in told[0]
    assert "autoscaler (to 2)" in told[0]


def test_one_writer_may_change_the_size_often(jobs: Jobs) -> None:
    jobs.create("moved", light_spec(replicas=1))
    for size in (2, 1, 2, 1, 2, 3):
        scale(jobs, "moved", size)
        wait_for(lambda: is_seen(jobs, "moved"), "it is seen")
    jobs.await_world("moved", 3)
    assert not [m for r, m in jobs.events("moved") if r == "SizeContested"]


def test_a_job_that_is_fought_about_keeps_the_smaller_size(jobs: Jobs) -> None:
    jobs.create("steady", light_spec(replicas=1))
    jobs.await_world("steady", 1)
    for _ in range(3):
        scale(jobs, "steady", 2)
        wait_for(lambda: is_seen(jobs, "steady"), "it is seen")
        apply_size(jobs, "steady", 1)
        wait_for(lambda: is_seen(jobs, "steady"), "it is seen")
    wait_for(lambda: [m for r, m in jobs.events("steady") if r == "SizeContested"], "it is told")
    before = jobs.await_world("steady", 1)["rendezvous"]["generation"]
    for _ in range(3):
        scale(jobs, "steady", 2)
        wait_for(lambda: len(live_pods(jobs, "steady")) == 2, "the second pod is ready")
        apply_size(jobs, "steady", 1)
        wait_for(lambda: len(live_pods(jobs, "steady")) == 1, "it goes again")
    assert jobs.await_world("steady", 1)["rendezvous"]["generation"] == before, "nobody's training is interrupted"


class TestNumberThatNobodyWrote:
    """The operator fills in `spec.replicas`, which autoscalers read. It is no field of the user's file."""

    @staticmethod
    def apply(jobs: Jobs, name: str, least: int, most: int, *, replicas: int | None = None, **policy: object) -> None:
        """Server-side apply of a file."""
        spec = light_spec(elasticPolicy={"minReplicas": least, "maxReplicas": most, **policy}, replicas=replicas)
        body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
        body["spec"] = spec if replicas else {key: value for key, value in spec.items() if key != "replicas"}
        jobs.kube.request("PATCH", f"{jobs.path}/{name}?fieldManager=kubectl&force=true", body, content_type=APPLY)

    def test_it_follows_the_bounds(self, jobs: Jobs) -> None:
        self.apply(jobs, "plain", 1, 2)
        jobs.await_world("plain", 2)
        self.apply(jobs, "plain", 1, 3)
        jobs.await_world("plain", 3)
        self.apply(jobs, "plain", 1, 2)
        jobs.await_world("plain", 2)
        self.apply(jobs, "plain", 3, 4)
        jobs.await_world("plain", 4)
        assert jobs.get("plain")["spec"]["replicas"] == 4
        assert jobs.condition("plain", "Degraded").get("reason") != "InvalidSpec"

    def test_one_that_was_scaled_stays(self, jobs: Jobs) -> None:
        self.apply(jobs, "scaled", 1, 3)
        jobs.await_world("scaled", 3)
        jobs.scale("scaled", 2)
        jobs.await_world("scaled", 2)
        self.apply(jobs, "scaled", 1, 4)
        wait_for(lambda: is_seen(jobs, "scaled"), "it is seen")
        assert jobs.get("scaled")["spec"]["replicas"] == 2

    def test_one_that_enters_the_file_stays(self, jobs: Jobs) -> None:
        self.apply(jobs, "claimed", 1, 2)
        jobs.await_world("claimed", 2)
        self.apply(jobs, "claimed", 1, 4, replicas=2)
        wait_for(lambda: is_seen(jobs, "claimed"), "it is seen")
        assert jobs.get("claimed")["spec"]["replicas"] == 2
        jobs.await_world("claimed", 2)

    def test_an_autoscaler_of_the_operator_follows_the_bounds(self, jobs: Jobs) -> None:
        target = {"type": "AverageValue", "averageValue": "10"}
        metrics = [{"type": "Pods", "pods": {"metric": {"name": "samples"}, "target": target}}]
        self.apply(jobs, "auto", 1, 4, metrics=metrics)
        jobs.await_world("auto", 4)
        jobs.scale("auto", 3)  # as the autoscaler does
        jobs.await_world("auto", 3)
        self.apply(jobs, "auto", 1, 2, metrics=metrics)
        jobs.await_world("auto", 2)
        assert jobs.condition("auto", "Degraded").get("reason") != "InvalidSpec"
