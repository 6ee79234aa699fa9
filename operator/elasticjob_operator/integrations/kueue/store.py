"""What the watches have told of Workloads and flavors, kept in step with our own writes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticjob_operator import shares, turn
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.integrations.kueue.values import (
    Flavor,
    Workload,
    observe_flavor,
    observe_workload,
    without_details,
)
from elasticjob_operator.kube.cache import LONGEST_MEMORY
from elasticjob_operator.kube.lists import Lists, is_older
from elasticjob_operator.model.observe import Job
from elasticjob_operator.recent import Recent

Raw = Mapping[str, Any]

KIND = "Workload"
MOST_WORKLOADS = 128  # of a job; it asks for far fewer, and any others are somebody else's
_MOST_LOOKED_AT = 2 * MOST_WORKLOADS  # in a pass: the others have their turn when some of these are gone
KEPT_BYTES = 8 * 1024  # of a Workload, which is enough for those that we make ...
KEPT_WORKLOADS = 4096  # ... of so many of a namespace: what is longer, and what is more, shares ...
MOST_KEPT_BYTES = 64 * 2**20  # ... so many bytes of all Workloads, of which one namespace gets half
NO_ROOM = (
    "the operator has no room for a Workload of this size: delete other Workloads of the namespace, and then this one,"
    " which is made anew"
)


@dataclass(slots=True)
class _OfKey:
    """The Workloads of the jobs of one name, by name; by the UID of the job in order, and those that leave."""

    workloads: dict[str, Workload] = field(default_factory=dict)
    in_order: dict[str, list[tuple[bool, int, str]]] = field(default_factory=dict)
    leaving: dict[str, dict[str, None]] = field(default_factory=dict)

    def put(self, workload: Workload) -> None:
        self.pop(workload.name)
        self.workloads[workload.name] = workload
        bisect.insort(self.in_order.setdefault(workload.job_uid, []), _rank(workload))
        if workload.is_deleting:
            self.leaving.setdefault(workload.job_uid, {})[workload.name] = None

    def pop(self, name: str) -> None:
        workload = self.workloads.pop(name, None)
        if workload is None:
            return
        line = self.in_order[workload.job_uid]
        del line[bisect.bisect_left(line, _rank(workload))]
        if not line:
            del self.in_order[workload.job_uid]
        if workload.is_deleting:
            del self.leaving[workload.job_uid][name]
            if not self.leaving[workload.job_uid]:
                del self.leaving[workload.job_uid]


def _rank(workload: Workload) -> tuple[bool, int, str]:
    return workload.is_deleting, workload.first, workload.name


class Store:
    """`wake` is called with the key of every job that something changed for, `wake_all` if that may be each of them."""

    def __init__(self, wake: Callable[[JobKey], None], wake_all: Callable[[], None] = lambda: None) -> None:
        self._wake, self._wake_all = wake, wake_all
        self._workloads: dict[JobKey, _OfKey] = {}
        self._places: dict[tuple[str, str], JobKey] = {}  # where they are kept, by namespace and name
        self._berths = shares.Berths(KEPT_BYTES, KEPT_WORKLOADS, MOST_KEPT_BYTES)
        # UIDs of those that were deleted, and the version at which they were: the answer to a write may come later.
        self._gone: Recent[str, str] = Recent(LONGEST_MEMORY)
        self.flavors: dict[str, Flavor] = {}
        self.lists = Lists()

    def put_workload(self, raw: Raw, since: int | None = None) -> None:
        """As a watch or the answer to a write tells it: `since` is what `lists.count` had said when that was sent."""
        workload, metadata = observe_workload(raw), raw["metadata"]
        namespace = str(metadata.get("namespace", ""))
        if workload is None:  # it may have been a job's before
            self.drop_workload(namespace, str(metadata.get("name", "")), str(metadata.get("uid", "")))
            return
        if is_older(workload.version, self._gone.get(workload.uid, "")):
            return
        key, place = (namespace, workload.job), (namespace, workload.name)
        before = self._find(namespace, workload.name)
        is_known = before is not None and before.uid == workload.uid
        if not is_known and self.lists.has_missed(KIND, namespace, workload.version, since):
            self._wake(key)  # its job asks again
            return
        if before is not None and (before.version == workload.version or is_older(workload.version, before.version)):
            return
        if before is not None and before.job != workload.job:
            self.drop_workload(namespace, before.name, before.uid)
        if not self._berths.put(place, workload.bytes_kept):
            self._berths.clear(place)
            workload = without_details(workload, NO_ROOM)
        self._places[place] = key
        self._workloads.setdefault(key, _OfKey()).put(workload)
        self._wake(key)

    def _find(self, namespace: str, name: str) -> Workload | None:
        key = self._places.get((namespace, name))
        return None if key is None else self._workloads[key].workloads[name]

    def drop_workload(self, namespace: str, name: str, uid: str) -> None:
        known = self._find(namespace, name)
        if known is None or known.uid != uid:
            return
        key = self._places.pop((namespace, name))
        self._berths.leave((namespace, name))
        of_key = self._workloads[key]
        of_key.pop(name)
        if not of_key.workloads:
            del self._workloads[key]
        self._wake(key)

    def apply_workload(self, event: str, raw: Raw) -> None:
        if event == "DELETED":
            metadata = raw["metadata"]
            self._gone[metadata["uid"]] = str(metadata.get("resourceVersion", ""))
            self.drop_workload(metadata["namespace"], metadata["name"], metadata["uid"])
        else:
            self.put_workload(raw)

    async def replace_workloads(self, uids: list[str], version: str, namespace: str = "") -> None:
        """The UIDs of all Workloads."""
        self.lists.end(KIND, namespace, version)
        listed = {uid async for uid in turn.one_by_one(uids)}
        async for of, name in turn.one_by_one(list(self._places)):
            known = self._find(of, name) if namespace in ("", of) else None
            if known is not None and known.uid not in listed and not is_older(version, known.version):
                self._gone[known.uid] = version
                self.drop_workload(of, name, known.uid)

    def keys(self) -> tuple[JobKey, ...]:
        return tuple(self._workloads)

    def workloads(self, job: Job) -> tuple[Workload, ...]:
        """Those of this very job, and not of a predecessor of its name: the first ones of those that stay, if many."""
        of_key = self._workloads.get(job.key, _OfKey())
        some = of_key.in_order.get(job.uid, ())[:_MOST_LOOKED_AT]
        return tuple(of_key.workloads[name] for _, _, name in some)

    def left_over(self, key: JobKey, uid: str = "") -> tuple[Workload, ...]:
        """Some that are being deleted, of jobs of this name that are gone; `uid` is the one that is there."""
        of_key = self._workloads.get(key, _OfKey())
        gone = itertools.chain.from_iterable(names for of, names in of_key.leaving.items() if of != uid)
        return tuple(of_key.workloads[name] for name in itertools.islice(gone, _MOST_LOOKED_AT))

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

    async def replace_flavors(self, there: list[str], version: str) -> None:
        """The names of all flavors."""
        listed = {*there}
        for name in [n for n in self.flavors if n not in listed]:
            del self.flavors[name]
