"""What Kueue has admitted of a job: its Workloads → a `Quota`. Pure.

The Workload with the first index is the base: without it nothing runs. The others are increments, and each of them can
be taken back alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from elasticjob_operator.integrations.kueue import names
from elasticjob_operator.integrations.kueue.values import Flavor, Grant, Workload
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.quota import Placement, Quota, Share

WAITING = "the queue has not decided yet"


def read_quota(workloads: Iterable[Workload], flavors: Mapping[str, Flavor], template_hash: str, queue: str) -> Quota:
    """The quota of a job that is in this queue, and what to tell about it."""
    of_job = sorted(workloads, key=lambda w: w.first)
    base = find_base(of_job)
    if base is None:
        return Quota(False, "Pending", f"LocalQueue {queue}: {WAITING}")
    if not base.may_run:
        return Quota(False, *_tell_waiting(base))
    admitted = [w for w in of_job if w.may_run]
    shares = tuple(_share(admitted, flavors, template_hash))
    return Quota(True, "Admitted", _tell_admitted(of_job, admitted), shares)


def _share(admitted: Iterable[Workload], flavors: Mapping[str, Flavor], template_hash: str) -> Iterator[Share]:
    """The quota of each; where two cover a pod, it is the first one's."""
    at = 0
    for workload in admitted:
        covered = workload.covered
        if covered.stop > at:
            is_current = workload.template_hash == template_hash
            start, placement = max(at, covered.start), _find_placement(workload, flavors) if is_current else None
            yield Share(start, covered.stop - start, placement)
            at = covered.stop


def read_dispatch(workloads: Sequence[Workload], queue: str) -> Quota:
    """The quota of a job that MultiKueue sends to another cluster: no pod of it may run in this one."""
    base = find_base(workloads)
    if base is None:
        return Quota(False, "Pending", f"LocalQueue {queue}: {WAITING}", is_sent_on=True)
    if not base.reserves:
        return Quota(False, *_tell_waiting(base), is_sent_on=True)
    cluster_queue = base.grant.cluster_queue if base.grant else ""
    if base.cluster or base.evicted:  # until it has given its quota back, the other cluster says how it ends there
        return Quota(True, "Admitted", "it runs in another cluster", is_sent_on=True, cluster=base.cluster)
    if base.is_admitted:
        remedy = f"give ClusterQueue {cluster_queue} an admission check of MultiKueue, or leave spec.managedBy out"
        return Quota(False, "NotDispatched", f"its queue sends no jobs to other clusters: {remedy}", is_sent_on=True)
    return Quota(False, "Pending", f"ClusterQueue {cluster_queue} waits for a cluster that admits it", is_sent_on=True)


def keep_what_runs(why: str, pods: Iterable[Pod]) -> Quota:
    """The quota of a job while its Workloads cannot be read: the pods that are there stay, and no others are made."""
    shares = tuple(Share(index, 1) for index in sorted({pod.index for pod in pods if pod.deleting is None}))
    return Quota(bool(shares), "KueueNotServed", why, shares)


def find_base(workloads: Sequence[Workload]) -> Workload | None:
    """The one that covers the first pod and is not on its way out."""
    return next((w for w in workloads if w.first == 0 and not w.is_deleting), None)


def _tell_waiting(base: Workload) -> tuple[str, str]:
    """(reason, message) of a base that is not admitted."""
    message = base.message or WAITING
    if not base.is_active:
        return "Deactivated", _tell_inactive(base)
    if base.evicted and base.reserves:
        return "Evicted", message
    if "doesn't exist" in message:
        return "QueueNotFound", f"{message}: create it, or change the job's label {names.LABEL_QUEUE}"
    if "maximum capacity" in message:
        return "QuotaTooSmall", f"{message}: lower minReplicas or its resources, or ask for another queue"
    return "Pending", f"LocalQueue {base.queue}: {message}"


def _tell_admitted(of_job: Sequence[Workload], admitted: Sequence[Workload]) -> str:
    cluster_queue = admitted[0].grant.cluster_queue if admitted[0].grant else ""
    pods = sum(len(w.covered) for w in admitted)
    waiting = [w for w in of_job if not (w.may_run or w.is_deleting or w.is_finished)]
    told = f"ClusterQueue {cluster_queue} has admitted {pods} pods"
    if not waiting:
        return told
    more = sum(w.count for w in waiting)
    inactive = next((w for w in waiting if not w.is_active), None)  # the others are tried again without anybody's help
    return f"{told}; {more} more wait: {_tell_inactive(inactive) if inactive else waiting[0].message or WAITING}"


def _tell_inactive(workload: Workload) -> str:
    return f"Workload {workload.name} is not active: set its spec.active to true to queue it again"


def _find_placement(workload: Workload, flavors: Mapping[str, Flavor]) -> Placement | None:
    """What its pods carry; None while a flavor of it is not known."""
    grant = workload.grant or Grant("")
    if any(name not in flavors for name in grant.flavors):
        return None
    labels = {
        names.LABEL_POD_SET: names.POD_SET,
        names.LABEL_LOCAL_QUEUE: workload.queue,
        names.LABEL_CLUSTER_QUEUE: grant.cluster_queue,
    }
    if workload.is_sent:
        labels[names.LABEL_SENT] = "true"
    annotations = {names.ANNOTATION_WORKLOAD: workload.name}
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, object]] = []
    for flavor in (flavors[name] for name in grant.flavors):
        selector |= flavor.node_labels
        tolerations += flavor.tolerations
    for update in grant.updates:
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
    if grant.has_topology:
        # Kueue takes the gates off in the order of the indices, counted from the first one of this Workload.
        annotations[names.ANNOTATION_OFFSET] = str(workload.first)
        if not workload.asks_topology:
            annotations[names.ANNOTATION_UNCONSTRAINED] = "true"
    gates = (names.TOPOLOGY_GATE,) if grant.has_topology else ()
    fitting = {key: value for key, value in labels.items() if value and len(value) <= 63}
    return Placement(fitting, annotations, selector, tuple(tolerations), gates)
