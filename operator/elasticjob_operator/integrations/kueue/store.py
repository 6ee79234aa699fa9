"""What the watches have told of Workloads and flavors, kept in step with our own writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import admission
from elasticjob_operator.integrations.kueue.values import (
    Flavor,
    Workload,
    observe_flavor,
    observe_workload,
    without_details,
)
from elasticjob_operator.kube.cache import is_older
from elasticjob_operator.model.observe import Job

Raw = Mapping[str, Any]

KEPT_BYTES = 8 * 1024  # of a Workload, which is enough for those that we make: what is longer shares ...
MOST_KEPT_BYTES = 64 * 2**20  # ... so many bytes of all Workloads, of which one namespace gets half
NO_ROOM = (
    "the operator has no room for a Workload of this size: delete other Workloads of the namespace, and then this one,"
    " which is made anew"
)


class Store:
    """`wake` is called with the key of every job that something changed for."""

    def __init__(self, wake: Callable[[JobKey], None]) -> None:
        self._wake = wake
        self._workloads: dict[JobKey, dict[str, Workload]] = {}  # by name
        self._job_of: dict[tuple[str, str], JobKey] = {}  # by namespace and name
        self._room = admission.Room(MOST_KEPT_BYTES)  # by namespace: bytes of long Workloads
        self.flavors: dict[str, Flavor] = {}

    def put_workload(self, raw: Raw) -> None:
        """As a watch or the answer to a write tells it."""
        workload, metadata = observe_workload(raw), raw["metadata"]
        namespace = str(metadata.get("namespace", ""))
        if workload is None:  # it may have been a job's before
            self.drop_workload(namespace, str(metadata.get("name", "")), str(metadata.get("uid", "")))
            return
        key = (namespace, workload.job)
        before = self._find(namespace, workload.name)
        if before is not None and (before.version == workload.version or is_older(workload.version, before.version)):
            return
        if before is not None and before.job != workload.job:
            self.drop_workload(namespace, before.name, before.uid)
            before = None
        if before is not None:
            self._room.leave(namespace, _count_excess(before))
        if (excess := _count_excess(workload)) and not self._room.enter(namespace, excess):
            workload = without_details(workload, NO_ROOM)
        self._workloads.setdefault(key, {})[workload.name] = workload
        self._job_of[namespace, workload.name] = key
        self._wake(key)

    def _find(self, namespace: str, name: str) -> Workload | None:
        key = self._job_of.get((namespace, name))
        return None if key is None else self._workloads[key][name]

    def drop_workload(self, namespace: str, name: str, uid: str) -> None:
        known = self._find(namespace, name)
        if known is None or known.uid != uid:
            return
        key = self._job_of.pop((namespace, name))
        self._room.leave(namespace, _count_excess(self._workloads[key].pop(name)))
        if not self._workloads[key]:
            del self._workloads[key]
        self._wake(key)

    def apply_workload(self, event: str, raw: Raw) -> None:
        if event == "DELETED":
            metadata = raw["metadata"]
            self.drop_workload(metadata["namespace"], metadata["name"], metadata["uid"])
        else:
            self.put_workload(raw)

    def replace_workloads(self, items: list[Raw], version: str, namespace: str = "") -> None:
        listed = {(i["metadata"]["namespace"], i["metadata"]["name"]) for i in items}
        for key, known in list(self._workloads.items()):
            if namespace and key[0] != namespace:
                continue
            for workload in list(known.values()):
                if (key[0], workload.name) not in listed and not is_older(version, workload.version):
                    self.drop_workload(key[0], workload.name, workload.uid)

    def keys(self) -> tuple[JobKey, ...]:
        return tuple(self._workloads)

    def workloads(self, job: Job) -> tuple[Workload, ...]:
        """Those of this very job, and not of a predecessor of its name."""
        return tuple(w for w in self._workloads.get(job.key, {}).values() if w.job_uid == job.uid)

    def left_over(self, key: JobKey, uid: str = "") -> tuple[Workload, ...]:
        """Those of jobs of this name that are gone; `uid` is the one that is there."""
        return tuple(w for w in self._workloads.get(key, {}).values() if w.job_uid != uid)

    def apply_flavor(self, event: str, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        if event == "DELETED":
            changed = self.flavors.pop(name, None) is not None
        else:
            flavor = observe_flavor(raw)
            changed = self.flavors.get(name) != flavor
            self.flavors[name] = flavor
        if changed:
            self._wake_all()

    def replace_flavors(self, items: list[Raw], version: str) -> None:
        listed = {item["metadata"]["name"] for item in items}
        for name in [n for n in self.flavors if n not in listed]:
            del self.flavors[name]

    def _wake_all(self) -> None:
        for key in list(self._workloads):
            self._wake(key)


def _count_excess(workload: Workload) -> int:
    return max(0, workload.bytes_kept - KEPT_BYTES)
