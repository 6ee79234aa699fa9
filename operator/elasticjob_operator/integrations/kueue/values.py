"""Workloads and flavors as the API server sends them → frozen values. Nothing here raises for what an object holds
where it matters: one that cannot be read is left out by whoever calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from elasticjob_operator import numerals, quantity, text
from elasticjob_operator.api import bounds, podtemplate
from elasticjob_operator.api import names as ours
from elasticjob_operator.integrations.kueue import names
from elasticjob_operator.model import ownership

Raw = Mapping[str, Any]
MOST_PODS = 100_000  # of a Workload: no job has more
MOST_MESSAGE = 1024  # characters of what is said about it, which becomes a condition of the job
# Of its conditions, amounts and updates, of which there are a few thousand bytes, or a multiple of that where a
# pod asks for a thousand amounts, or Kueue names all flavors that do not fit.
MOST_BYTES, MOST_VALUES = 128 * 1024, 2048
_VALUE_BYTES = 64  # that Python needs for a value, beside its text
MOST_FINALIZERS = 32  # who adds more keeps it from being gone with or without ours
PLACEMENTS = frozenset({"required", "preferred", "unconstrained"})  # of a topology request
_WHERE = "in its conditions, its containers' requests and its podSetUpdates: remove what is not Kueue's"


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: what pods need to run on its nodes."""

    node_labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What an admission says about the pods: which flavors they use, and what admission checks have added."""

    cluster_queue: str
    flavors: tuple[str, ...] = ()
    has_topology: bool = False
    updates: tuple[Raw, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """One that this operator has made for a job: quota for `count` pods with the indices from `first` on."""

    name: str
    uid: str
    version: str
    job: str
    job_uid: str
    first: int
    count: int
    queue: str = ""
    priority_class: str = ""
    template_hash: str = ""
    reclaimed: int = 0  # pods, the last ones, whose quota was given back
    granted: int | None = None  # pods that were admitted, if they may be fewer than it asks for
    reserves: bool = False  # it holds quota
    is_admitted: bool = False  # pods may run
    evicted: str = ""  # why it has to give its quota back: reason
    is_finished: bool = False
    is_active: bool = True
    is_deleting: bool = False
    finalizers: tuple[str, ...] = ()
    message: str = ""  # what Kueue says about it
    cluster: str = ""  # the one that MultiKueue has sent the job to
    is_sent: bool = False  # MultiKueue has made it, from another cluster's
    grant: Grant | None = None
    asks_topology: bool = False  # it says where its pods are to be placed
    requests: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict)  # by container: resource → amount
    generation: int = 0
    conditions: tuple[Raw, ...] = field(default=(), compare=False)
    bytes_kept: int = field(default=0, compare=False)  # about what its conditions, amounts and updates take in memory

    @property
    def covered(self) -> range:
        """The indices that it has quota for, once it is admitted."""
        count = self.count - self.reclaimed
        return range(self.first, self.first + max(0, count if self.granted is None else min(self.granted, count)))

    @property
    def may_run(self) -> bool:
        return self.is_admitted and not self.evicted and self.is_active and not (self.is_finished or self.is_deleting)

    @property
    def is_held(self) -> bool:
        """Our finalizer keeps it, and with it its quota, from being gone."""
        return names.FINALIZER in self.finalizers

    def condition(self, type: str) -> Raw:
        return next((c for c in self.conditions if c.get("type") == type), {})

    def is_true(self, type: str) -> bool:
        return self.condition(type).get("status") == "True"


def find_requests(template: Raw) -> dict[str, dict[str, Decimal]]:
    """What each container of a pod template asks for; nothing where that is more than any job does."""
    spec = template.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    written = {str(container.get("name")): quantity.find_requests(container) for container in containers}
    if sum(map(len, written.values())) > podtemplate.MOST_AMOUNTS:
        return {}
    return {name: {resource: _amount(v) for resource, v in amounts.items()} for name, amounts in written.items()}


def is_enough(asked: Mapping[str, Mapping[str, Decimal]], needed: Mapping[str, Mapping[str, Decimal]]) -> bool:
    """Whether the containers of a Workload ask for all that those of a job need: it may ask for more."""
    return all(
        asked.get(container, {}).get(resource, 0) >= amount
        for container, requests in needed.items()
        for resource, amount in requests.items()
    )


def _amount(value: object) -> Decimal:
    try:
        return quantity.parse(value)
    except ValueError:
        return Decimal(0)  # the API server takes no such Workload, and no such pod


def observe_flavor(raw: Raw) -> Flavor:
    spec = raw.get("spec") or {}
    return Flavor(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))


def observe_workload(raw: Raw) -> Workload | None:
    """A Workload of one of our jobs; None where it is somebody else's."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    job, job_uid = ownership.owner_of(metadata)
    annotations = metadata.get("annotations") or {}
    first = numerals.read_count(annotations.get(names.ANNOTATION_FIRST), MOST_PODS)
    if not job_uid or first is None:
        return None
    (pod_set, *_) = spec.get("podSets") or [{}]
    conditions, grant = tuple(status.get("conditions") or ()), _observe_grant(status)
    requests, finalizers = find_requests(pod_set.get("template") or {}), tuple(metadata.get("finalizers") or ())
    true = {c["type"] for c in conditions if c.get("status") == "True"}
    said = {c["type"]: c for c in conditions}
    reclaimed = next((r["count"] for r in status.get("reclaimablePods") or () if r.get("name") == names.POD_SET), 0)
    workload = Workload(
        name=metadata["name"],
        uid=metadata["uid"],
        version=str(metadata.get("resourceVersion", "")),
        job=job,
        job_uid=job_uid,
        first=first,
        count=min(numerals.read_count(pod_set.get("count", 1), 2**64) or 0, MOST_PODS),
        queue=_name(spec.get("queueName")),
        priority_class=_name((spec.get("priorityClassRef") or {}).get("name")),
        template_hash=_name(annotations.get(names.ANNOTATION_TEMPLATE)),
        reclaimed=numerals.read_count(reclaimed) or 0,
        reserves="QuotaReserved" in true,
        is_admitted="Admitted" in true,
        evicted=_name(said["Evicted"].get("reason", "Evicted")) if "Evicted" in true else "",
        is_finished="Finished" in true,
        is_active=spec.get("active") is not False,
        is_deleting=metadata.get("deletionTimestamp") is not None,
        finalizers=finalizers if len(finalizers) <= MOST_FINALIZERS else (),
        message=text.clean(
            str((said["Evicted"] if "Evicted" in true else said.get("QuotaReserved", {})).get("message", "")),
            MOST_MESSAGE,
        ),
        cluster=_name(status.get("clusterName")),
        is_sent=ours.LABEL_ORIGIN in (metadata.get("labels") or {}),
        granted=_count_granted(status),
        grant=grant,
        asks_topology=not PLACEMENTS.isdisjoint(pod_set.get("topologyRequest") or ()),
        requests=requests,
        generation=numerals.read_count(metadata.get("generation")) or 0,
        conditions=conditions,
    )
    granted = [*grant.flavors, *grant.updates] if grant is not None else []
    size = bounds.measure([*conditions, *granted, *finalizers, requests], MOST_VALUES)
    if excess := _find_excess(size):
        return without_details(workload, excess)
    return replace(workload, bytes_kept=size.bytes + _VALUE_BYTES * size.values)


def without_details(workload: Workload, why: str) -> Workload:
    """What remains of one that cannot be kept as it was written, and so admits nothing."""
    finalizers = workload.finalizers if sum(map(len, workload.finalizers)) <= MOST_MESSAGE else ()
    less = replace(workload, is_admitted=False, message=why, grant=None, finalizers=finalizers, bytes_kept=0)
    return replace(less, requests={}, conditions=())


def _find_excess(size: bounds.Size) -> str:
    """Why a Workload cannot be kept as it was written; "" where it can."""
    if size.values > MOST_VALUES:
        return f"the Workload has more than {MOST_VALUES} values {_WHERE}"
    return f"the Workload has {size.bytes} bytes, of at most {MOST_BYTES}, {_WHERE}" if size.bytes > MOST_BYTES else ""


def _name(value: object) -> str:
    return str(value or "")[: ownership.LONGEST_NAME]


def _count_granted(status: Raw) -> int | None:
    """For how many pods there is quota: whoever makes a Workload may let Kueue admit a part of it."""
    assignments = (status.get("admission") or {}).get("podSetAssignments") or ()
    return numerals.read_count(assignments[0].get("count")) if assignments else None


def _observe_grant(status: Raw) -> Grant | None:
    admission = status.get("admission")
    if not admission:
        return None
    (assignment, *_) = admission.get("podSetAssignments") or [{}]
    updates = [
        update
        for check in status.get("admissionChecks") or ()
        for update in check.get("podSetUpdates") or ()
        if update.get("name") == names.POD_SET
    ]
    return Grant(
        cluster_queue=_name(admission.get("clusterQueue")),
        flavors=tuple(sorted(set((assignment.get("flavors") or {}).values()))),
        has_topology=bool(assignment.get("topologyAssignment")),
        updates=tuple(updates),
    )
