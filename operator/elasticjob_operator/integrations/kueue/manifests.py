"""The objects and patches that are sent to the API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

from elasticjob_operator import api, numerals
from elasticjob_operator.api import names as ours
from elasticjob_operator.apply import manifests
from elasticjob_operator.integrations.kueue import names
from elasticjob_operator.integrations.kueue.asking import Create, Set
from elasticjob_operator.integrations.kueue.values import Workload, find_requests, is_enough
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.values import NewPod
from elasticjob_operator.times import format_time

_SCHEDULING: Final = "scheduling.k8s.io"
Object = dict[str, Any]
Requests = Mapping[str, Mapping[str, Decimal]]
MOST_TEXT = 32 * 1024  # characters of a condition's message
_OF_CONTAINERS = ("name", "image", "resources", "restartPolicy", "ports")


@dataclass(frozen=True, slots=True)
class Priority:
    """The class that orders a Workload, with the number that it stands for."""

    group: str
    name: str
    value: int


def workload_name(job: Job, first: int) -> str:
    return ours.workload_name(job.name, job.uid, first)


def is_sent_on(spec: api.Spec | None) -> bool:
    """Whether MultiKueue sends a job to another cluster. It leaves `managedBy` out of what it sends."""
    return spec is not None and spec.managed_by == names.MULTIKUEUE and spec.run_policy.managed_by is None


def find_prebuilt(job: Job) -> str:
    """The name of the Workload that MultiKueue has made for a job that it has sent here; "" for any other job."""
    if ours.LABEL_ORIGIN not in job.labels:
        return ""
    return job.labels.get(names.PREBUILT, "") or job.annotations.get(names.PREBUILT, "")


def build_adoption(raw: Mapping[str, Any], job: Job) -> Object | None:
    """A merge patch that makes a job the owner of a Workload that MultiKueue has made for it; None if it is not its."""
    metadata = raw["metadata"]
    labels = metadata.get("labels") or {}
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("uid") != job.uid]
    origin = labels.get(ours.LABEL_ORIGIN)
    if not origin or origin != job.labels.get(ours.LABEL_ORIGIN) or any(o.get("controller") for o in owners):
        return None
    mine = manifests.metadata(job, metadata["name"])["ownerReferences"]
    described = {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "labels": {names.LABEL_JOB_UID: job.uid},
        "ownerReferences": [*owners, *mine],
        "finalizers": sorted({*(metadata.get("finalizers") or ()), names.FINALIZER}),
    }
    return {"metadata": described}


def find_needed(job: Job) -> Requests:
    """What the containers of a pod of this job ask for."""
    return find_requests(job.spec.template) if job.spec is not None else {}


def is_genuine(workload: Workload, job: Job, needed: Requests) -> bool:
    """Whether a Workload is one that we would make: whoever may write Workloads can name any job as the owner.

    One of another template may be what the pods that exist were admitted with, so it has no new ones anyway.
    """
    if workload.name != workload_name(job, workload.first) and (workload.first or workload.name != find_prebuilt(job)):
        return False
    spec = job.spec
    if spec is None or workload.template_hash != spec.template_hash:
        return True
    return is_enough(workload.requests, needed)


def build_workload(
    job: Job, spec: api.Spec, new: Create, queue: str, settings: manifests.Settings, priority: Priority | None
) -> Object:
    """The Workload for pods with the indices from `new.first` on."""
    described = manifests.metadata(job, workload_name(job, new.first))
    described["labels"][names.LABEL_JOB_UID] = job.uid
    described["annotations"] = {
        names.ANNOTATION_FIRST: str(new.first),
        names.ANNOTATION_TEMPLATE: spec.template_hash,
    }
    described["finalizers"] = [names.FINALIZER]
    pod_set: Object = {"name": names.POD_SET, "count": new.count, "template": build_template(job, spec, settings)}
    topology = find_topology(spec)
    if topology:
        pod_set["topologyRequest"] = topology
    body: Object = {"queueName": queue, "podSets": [pod_set]}
    if priority is not None:
        kind = find_class_kind(priority.group)
        body["priorityClassRef"] = {"group": priority.group, "kind": kind, "name": priority.name}
        body["priority"] = priority.value
    return {"apiVersion": names.API_VERSION, "kind": "Workload", "metadata": described, "spec": body}


class PriorityOf(NamedTuple):
    """The class that a Workload asks for; without a name, none."""

    group: str
    name: str
    field: str  # of the job, which names it

    @property
    def kind(self) -> str:
        return find_class_kind(self.group)


def find_class(job: Job, spec: api.Spec | None, *, is_base: bool) -> PriorityOf:
    """The class of the job's label, or else of its pods; increments may have one of their own."""
    if not is_base and (name := job.annotations.get(names.ANNOTATION_GROWTH_PRIORITY)) is not None:
        found = PriorityOf(names.GROUP, name, f"metadata.annotations[{names.ANNOTATION_GROWTH_PRIORITY}]")
    else:
        name = job.labels.get(names.LABEL_PRIORITY, "")
        found = PriorityOf(names.GROUP, name, f"metadata.labels[{names.LABEL_PRIORITY}]")
    if found.name or spec is None:
        return found
    name = str(spec.template["spec"].get("priorityClassName") or "")
    return PriorityOf(_SCHEDULING, name, "spec.template.spec.priorityClassName")


def find_class_kind(group: str) -> str:
    return "PriorityClass" if group == _SCHEDULING else "WorkloadPriorityClass"


def build_template(job: Job, spec: api.Spec, settings: manifests.Settings) -> Object:
    """The pod as far as it matters for its admission: a job may have many Workloads, and a large template."""
    pod = manifests.build_pod(job, spec, NewPod(0), settings)
    body = {k: v for k, v in pod["spec"].items() if k not in ("hostname", "subdomain", "volumes")}
    for key in ("containers", "initContainers"):
        if body.get(key):
            body[key] = [{k: c[k] for k in _OF_CONTAINERS if k in c} for c in body[key]]
    theirs = spec.template.get("metadata") or {}
    described = {key: theirs[key] for key in ("labels", "annotations") if theirs.get(key)}
    return {"metadata": described, "spec": body}


def find_topology(spec: api.Spec) -> Object:
    """The topology request that the template's annotations make."""
    annotations = (spec.template.get("metadata") or {}).get("annotations") or {}
    found: Object = {}
    for annotation, name in names.TOPOLOGY_REQUESTS.items():
        value = annotations.get(annotation)
        if value is None:
            continue
        if name == "unconstrained":
            found[name] = value == "true"
        elif name == "podSetSliceSize":
            found[name] = numerals.read_count(value, 2**31 - 1) or 0
        else:
            found[name] = value
    return {**found, "podIndexLabel": ours.LABEL_INDEX} if found else {}


def build_status_patch(change: Set, now: float) -> Object:
    """A merge patch of the status; the version makes sure that nobody's condition is lost."""
    workload = change.workload
    status: Object = {}
    if change.conditions:
        status["conditions"] = _with_conditions(workload, change, format_time(now)[:19] + "Z")
    if change.reclaimed is not None:
        status["reclaimablePods"] = [{"name": names.POD_SET, "count": change.reclaimed}]
    if change.is_released:
        status |= {"admission": None, "reclaimablePods": None}
    return {"metadata": {"uid": workload.uid, "resourceVersion": workload.version}, "status": status}


def _with_conditions(workload: Workload, change: Set, when: str) -> list[Mapping[str, Any]]:
    found = {c["type"]: c for c in workload.conditions}
    for type, truth, reason, message in change.conditions:
        status = "True" if truth else "False"
        before = found.get(type, {})
        found[type] = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message[:MOST_TEXT] or reason,  # old API servers take an empty text for null
            "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == status else when,
            "observedGeneration": workload.generation,
        }
    return list(found.values())


def build_let_go(workload: Workload) -> Object:
    """A merge patch that takes our finalizer off."""
    rest = [f for f in workload.finalizers if f != names.FINALIZER]
    return {"metadata": {"uid": workload.uid, "resourceVersion": workload.version, "finalizers": rest}}
