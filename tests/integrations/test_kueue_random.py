"""Five jobs over two queues that are submitted, resized, preempted, suspended and deleted at random.

`ELASTICJOB_KUEUE_CHANGES` makes it longer, `ELASTICJOB_KUEUE_SEED` another one.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from typing import Any

import pytest

from elasticjob_devcluster import KubeError
from integrations.conftest import Queues
from integrations.kueue_standin import count, is_true
from operator_fixture import wait_for

CHANGES = int(os.environ.get("ELASTICJOB_KUEUE_CHANGES", "40"))
SEED = int(os.environ.get("ELASTICJOB_KUEUE_SEED", "1"))
NAMES = ("a", "b", "c", "d", "e")
QUEUES = {"left": 5, "right": 4}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240 + 10 * CHANGES)]


class Auditor:
    """Compares pods with quota, both as they were at one revision of the store."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.kube = queues.kube
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.most = Counter[str]()  # pods that ran at a time, by job
        self.violations: list[str] = []

    def _run(self) -> None:
        while not self.stopped.wait(0.05):
            try:
                self._look()
            except KubeError:
                continue  # that revision is gone

    def _look(self) -> None:
        listed = self.kube.request("GET", self.queues.workloads_path)
        at = listed["metadata"]["resourceVersion"]
        exactly = f"resourceVersion={at}&resourceVersionMatch=Exact"
        pods = self.kube.request("GET", f"/api/v1/namespaces/{self.queues.jobs.namespace}/pods?{exactly}")["items"]
        quota, running = Counter[str](), Counter[str]()
        for workload in listed["items"]:
            if is_true(workload, "QuotaReserved") and not is_true(workload, "Finished"):
                quota[workload["metadata"]["ownerReferences"][0]["uid"]] += count(workload)
        for pod in pods:
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                running[pod["metadata"]["ownerReferences"][0]["uid"]] += 1
        self.looks += 1
        self.most |= running
        for job, pods_of_job in running.items():
            if pods_of_job > quota[job]:
                self.violations.append(f"revision {at}: {pods_of_job} pods of {job}, and quota for {quota[job]}")

    def __enter__(self) -> Auditor:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join(10)


class Story:
    """Makes one change after the other."""

    def __init__(self, queues: Queues, seed: int) -> None:
        self.queues = queues
        self.jobs = queues.jobs
        self.random = random.Random(seed)
        self.present: dict[str, dict[str, Any]] = {}
        self.lost: list[str] = []
        self.done = Counter[str]()

    def step(self) -> None:
        name = self.random.choice(NAMES)
        if name not in self.present:
            self._submit(name)
        else:
            weights = {self._scale: 5, self._suspend: 2, self._delete: 1, self._squeeze: 3}
            (act,) = self.random.choices(list(weights), list(weights.values()))
            act(name)
        if self.random.random() < 0.5:
            self._rest()

    def _rest(self) -> None:
        """Until every job has the pods that are admitted, or another change would have come first."""

        def is_calm(name: str) -> bool:
            status = self.jobs.status(name)
            is_seen: bool = status.get("observedGeneration", 0) > 0
            return is_seen and bool(status.get("replicas", 0) == self.queues.admitted(name))

        with contextlib.suppress(AssertionError):
            wait_for(lambda: all(is_calm(name) for name in self.present), "calm", 5, poll=0.2)

    def _submit(self, name: str) -> None:
        low = self.random.randint(1, 2)
        policy = {"minReplicas": low, "maxReplicas": 4, "gracefulShutdownTimeoutSeconds": 2}
        priority = self.random.choice(("", "", "low", "high"))
        self.queues.submit(
            name,
            self.random.choice(list(QUEUES)),
            priority=priority,
            growth="low",
            elasticPolicy=policy,
            replicas=self.random.randint(low, 4),
        )
        self.present[name] = {"min": low, "suspended": False}
        self.done["submitted"] += 1

    def _scale(self, name: str) -> None:
        self.jobs.patch(name, {"replicas": self.random.randint(self.present[name]["min"], 4)})
        self.done["resized"] += 1

    def _suspend(self, name: str) -> None:
        to = not self.present[name]["suspended"]
        self.jobs.patch(name, {"runPolicy": {"suspend": to}})
        self.present[name]["suspended"] = to
        self.done["suspended or resumed"] += 1

    def _delete(self, name: str) -> None:
        self.note_losses(name)
        self.jobs.delete(name)
        del self.present[name]
        self.done["deleted"] += 1

    def _squeeze(self, name: str) -> None:
        queue, most = self.random.choice(list(QUEUES.items()))
        self.queues.resize(queue, self.random.randint(2, most))
        self.done["queues resized"] += 1

    def note_losses(self, name: str) -> None:
        restarts = self.jobs.status(name).get("restarts", {})
        if restarts.get("infrastructure") or restarts.get("total"):
            self.lost.append(f"{name}: {restarts}")


def test_whatever_happens_no_pod_runs_without_quota(queues: Queues) -> None:
    for name, pods in QUEUES.items():
        queues.make(name, pods)
    story = Story(queues, SEED)
    with Auditor(queues) as auditor:
        for _ in range(CHANGES):
            story.step()
            assert not auditor.violations, auditor.violations[:3]
        for name, pods in QUEUES.items():
            queues.resize(name, pods)
        for name in NAMES:
            if name in story.present:
                story.note_losses(name)
                queues.jobs.delete(name)
        wait_for(lambda: not queues.workloads(), "nothing is left over", 120)
    evicted = sum(1 for reason, _ in all_events(queues) if reason == "Evicted")
    print(
        f"seed {SEED}: {dict(story.done)}; {auditor.looks} looks, {len(auditor.most)} jobs ran, {evicted} bases evicted"
    )
    assert auditor.looks > CHANGES / 4, "it was looked at"
    assert len(auditor.most) > story.done["submitted"] / 3, "they ran"
    assert max(auditor.most.values()) > 1, "with more than one pod"
    assert not auditor.violations, auditor.violations[:3]
    assert not story.lost, "a preemption is announced: it is no loss"
    assert "MemberLost" not in {reason for reason, _ in all_events(queues)}


def all_events(queues: Queues) -> list[tuple[str, str]]:
    items = queues.kube.request("GET", f"/api/v1/namespaces/{queues.jobs.namespace}/events")["items"]
    return [(e["reason"], e["message"]) for e in items]
