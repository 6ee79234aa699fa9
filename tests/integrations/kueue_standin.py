"""A small stand-in for Kueue's scheduler: the same objects, one flavor, one resource, whole Workloads.

It admits in the order of priority and age, takes quota back from lower priorities where that makes room, and counts
quota as used until whoever holds it says that it is free. With `ready_seconds` it waits for pods, as `waitForPodsReady`
does. What Kueue does beyond that is tried with Kueue itself.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from elasticjob_devcluster import Cluster, KubeError
from integrations.kueue_kinds import ROOT
from operator_fixture import MERGE

Raw = dict[str, Any]
LOOK_SECONDS = 0.03
REQUEUE_SECONDS = 1.0  # before a Workload whose pods were not ready in time is queued again


class StandIn:
    def __init__(self, cluster: Cluster, look_seconds: float = LOOK_SECONDS) -> None:
        self.kube = cluster.kube
        self.look_seconds = look_seconds
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[str] = []
        self.ready_seconds: float | None = None  # in which the pods of an admitted Workload have to start
        self.requeues: int | None = None  # after so many, a Workload is deactivated
        self._timeouts: Counter[str] = Counter()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(10)

    @contextlib.contextmanager
    def running(self) -> Iterator[StandIn]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def wait_for_pods(self, seconds: float | None, requeues: int | None = None) -> None:
        self.ready_seconds, self.requeues = seconds, requeues

    def _run(self) -> None:
        while not self.stopped.wait(self.look_seconds):
            try:
                self._look()
            except KubeError as error:
                if error.status not in (404, 409):
                    self.errors.append(str(error))

    def _look(self) -> None:
        queues = {q["metadata"]["name"]: q for q in self._list("clusterqueues")}
        local = {
            (q["metadata"]["namespace"], q["metadata"]["name"]): q["spec"]["clusterQueue"]
            for q in self._list("localqueues")
        }
        workloads = [w for w in self._list("workloads") if not is_true(w, "Finished")]
        if any(self._watch_pods(w) for w in workloads):
            return
        waiting = [
            w
            for w in workloads
            if not is_true(w, "QuotaReserved")
            and "deletionTimestamp" not in w["metadata"]
            and w["spec"].get("active", True)
            and find(w, "Requeued").get("status") != "False"
        ]
        waiting.sort(key=lambda w: (-priority(w), w["metadata"]["creationTimestamp"], w["metadata"]["name"]))
        for workload in waiting:
            name = workload["spec"]["queueName"]
            queue = queues.get(local.get((workload["metadata"]["namespace"], name), ""))
            if queue is None:
                self._refuse(workload, f"LocalQueue {name} doesn't exist")
                continue
            holding = [w for w in workloads if cluster_queue(w) == queue["metadata"]["name"]]
            if self._try(workload, queue, holding):
                return  # what is known of the rest is old now

    def _watch_pods(self, workload: Raw) -> bool:
        """Evict a Workload whose pods do not start in time, and queue it again later; whether something was written."""
        now, uid = time.time(), workload["metadata"]["uid"]
        requeued, ready = find(workload, "Requeued"), find(workload, "PodsReady")
        began = ready if ready.get("reason") == "WaitForRecovery" else find(workload, "Admitted")
        is_late = self.ready_seconds is not None and now - moment(began) > self.ready_seconds
        is_held = is_true(workload, "Admitted") and not is_true(workload, "Evicted")
        if is_held and is_late and not is_true(workload, "PodsReady"):
            self._timeouts[uid] += 1
            is_last = self.requeues is not None and self._timeouts[uid] > self.requeues
            if is_last:
                self._patch(workload, {"spec": {"active": False}})
            reason = "DeactivatedDueToRequeuingLimitExceeded" if is_last else "PodsReadyTimeout"
            fresh = self.kube.request("GET", self._path(workload))
            self._write(fresh, [("Evicted", "True", reason)], {}, f"Exceeded the PodsReady timeout {named(workload)}")
            return True
        if requeued.get("status") == "False" and now - moment(requeued) > REQUEUE_SECONDS:
            self._write(workload, [("Requeued", "True", "BackoffFinished")], {})
            return True
        return False

    def _try(self, workload: Raw, queue: Raw, holding: list[Raw]) -> bool:
        quota = milli(queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])
        needed = count(workload) * request(workload)
        if needed > quota:
            self._refuse(
                workload, f"insufficient quota for cpu in flavor default, {needed}m > maximum capacity ({quota}m)"
            )
            return False
        free = quota - sum(count(w) * request(w) for w in holding)
        if needed <= free:
            self._admit(workload, queue["metadata"]["name"])
            return True
        victims = sorted((w for w in holding if priority(w) < priority(workload)), key=lambda w: -age(w))
        going = sum(count(w) * request(w) for w in holding if is_true(w, "Evicted"))
        for victim in victims:
            if free + going >= needed:
                break
            if not is_true(victim, "Evicted"):
                going += count(victim) * request(victim)
                self._evict(victim)
        self._refuse(workload, f"insufficient unused quota for cpu in flavor default, {needed - free}m more needed")
        return False

    def _admit(self, workload: Raw, queue: str) -> None:
        pods = workload["spec"]["podSets"][0]["count"]
        assignment = {"name": "workers", "flavors": {"cpu": "default"}, "count": pods}
        self._write(
            workload,
            [
                ("QuotaReserved", "True", "QuotaReserved"),
                ("Admitted", "True", "Admitted"),
                ("Evicted", "False", "Admitted"),
            ],
            {"admission": {"clusterQueue": queue, "podSetAssignments": [assignment]}},
        )

    def _evict(self, workload: Raw) -> None:
        self._write(workload, [("Evicted", "True", "Preempted")], {}, "Preempted to accommodate a workload")

    def _refuse(self, workload: Raw, message: str) -> None:
        said = find(workload, "QuotaReserved")
        if said.get("message") != message:
            self._write(workload, [("QuotaReserved", "False", "Pending")], {}, message)

    def _write(self, workload: Raw, conditions: list[tuple[str, str, str]], status: Raw, message: str = "") -> None:
        known = {c["type"]: c for c in (workload.get("status") or {}).get("conditions") or ()}
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for type, truth, reason in conditions:
            told = {
                "type": type,
                "status": truth,
                "reason": reason,
                "message": message or reason,
                "lastTransitionTime": when,
            }
            known[type] = told
        self._patch(workload, {"status": {"conditions": list(known.values()), **status}}, "/status")

    def _path(self, workload: Raw) -> str:
        metadata = workload["metadata"]
        return f"{ROOT}/namespaces/{metadata['namespace']}/workloads/{metadata['name']}"

    def _patch(self, workload: Raw, body: Raw, part: str = "") -> None:
        version = {"metadata": {"resourceVersion": workload["metadata"]["resourceVersion"]}}
        self.kube.request("PATCH", self._path(workload) + part, {**version, **body}, content_type=MERGE)

    def _list(self, plural: str) -> list[Raw]:
        items: list[Raw] = (self.kube.get(f"{ROOT}/{plural}") or {"items": []})["items"]
        return items


def find(workload: Raw, type: str) -> Raw:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type), {})


def is_true(workload: Raw, type: str) -> bool:
    return find(workload, type).get("status") == "True"


def cluster_queue(workload: Raw) -> str:
    """The queue that holds quota for it; "" where none does."""
    if not is_true(workload, "QuotaReserved"):
        return ""
    return str(((workload.get("status") or {}).get("admission") or {}).get("clusterQueue", ""))


def count(workload: Raw) -> int:
    given_back = sum(r["count"] for r in (workload.get("status") or {}).get("reclaimablePods") or ())
    return int(workload["spec"]["podSets"][0]["count"]) - int(given_back)


def request(workload: Raw) -> int:
    """Thousandths of a CPU for each pod."""
    containers = workload["spec"]["podSets"][0]["template"]["spec"]["containers"]
    return sum(milli(c.get("resources", {}).get("requests", {}).get("cpu", "0")) for c in containers)


def milli(quantity: str | int) -> int:
    """0 where it is none: the API server refuses the pods, too."""
    found = re.fullmatch(r"(\d+)(m?)", str(quantity))
    return int(found[1]) * (1 if found[2] else 1000) if found else 0


def priority(workload: Raw) -> int:
    return int(workload["spec"].get("priority", 0))


def named(workload: Raw) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def moment(condition: Raw) -> float:
    """The time of its last transition, in seconds."""
    said = condition.get("lastTransitionTime")
    return datetime.datetime.fromisoformat(said).timestamp() if said else 0.0


def age(workload: Raw) -> float:
    """The time of its making, in seconds."""
    return datetime.datetime.fromisoformat(workload["metadata"]["creationTimestamp"]).timestamp()
