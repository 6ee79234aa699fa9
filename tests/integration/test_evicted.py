"""Pods that their node puts out again and again: the job makes few new ones, and heals at once when it is over."""

from __future__ import annotations

import time

import pytest

from chaos.manifest_judge import most_pods_of_evicted
from operator_fixture import MERGE, Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

LIVED_SECONDS = 1.5
LOW = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 1Gi."


class Evictor:
    """Says of pods what a kubelet says that needs its disk for itself."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        self.jobs, self.name = jobs, name
        self.made: dict[str, float] = {}  # when each pod was first seen, by UID
        self.began: dict[str, float] = {}
        self.evicted: dict[str, float] = {}

    def look(self, *, is_evicting: bool = True) -> None:
        for pod in self.jobs.pods(self.name):
            uid, now = pod["metadata"]["uid"], time.monotonic()
            self.made.setdefault(uid, now)
            if pod.get("status", {}).get("phase") != "Running" or uid in self.evicted:
                continue
            if is_evicting and now - self.began.setdefault(uid, now) >= LIVED_SECONDS:
                self.evicted[uid] = now
                path = f"/api/v1/namespaces/{self.jobs.namespace}/pods/{pod['metadata']['name']}/status"
                status = {"phase": "Failed", "reason": "Evicted", "message": LOW}
                body = {"metadata": {"uid": uid}, "status": status}
                self.jobs.kube.request("PATCH", path, body, content_type=MERGE)


def test_pods_that_are_evicted_soon_after_their_start_are_few(jobs: Jobs) -> None:
    """Ten a minute of a job of two; a larger one makes more only of its first pods and of those in their place."""
    size = 3
    jobs.create("evicted", light_spec(replicas=size))
    evictor, began = Evictor(jobs, "evicted"), time.monotonic()
    while time.monotonic() - began < 60:
        evictor.look()
        time.sleep(0.1)
    times = sorted(evictor.made.values())
    print([round(at - began, 1) for at in times])
    first = min(evictor.evicted.values())
    assert times[size] - first < 3, "the first loss is made good at once"
    assert len(times) <= most_pods_of_evicted(size), [round(at - began, 1) for at in times]
    told = jobs.condition("evicted", "Degraded")
    assert told["reason"] == "BackOff" and "ephemeral-storage" in told["message"]
    assert jobs.status("evicted")["restarts"].get("user", 0) == 0

    def heal() -> bool:
        evictor.look(is_evicting=False)
        return jobs.status("evicted").get("readyReplicas") == size

    wait_for(heal, "the job heals by itself", 90)


def test_an_autoscaler_that_changes_the_size_makes_no_more_of_them(jobs: Jobs) -> None:
    """A size mends nothing: each change of it was a reason to try all pods again."""
    jobs.create("scaled", light_spec(replicas=2))
    evictor, began, changed = Evictor(jobs, "scaled"), time.monotonic(), 0
    while (now := time.monotonic()) - began < 40:
        evictor.look()
        if now - began > 5 * (changed + 1):
            changed += 1
            jobs.scale("scaled", 2 + changed % 2)
        time.sleep(0.1)
    times = [round(at - began, 1) for at in evictor.made.values()]
    assert changed >= 6
    assert len(times) <= most_pods_of_evicted(3), sorted(times)
    assert jobs.condition("scaled", "Degraded")["reason"] == "BackOff"
