"""PodGroups: what a scheduler has to know to place `minReplicas` pods together or not at all. Pure.

What names a queue or a class is where each scheduler's own users write it: in the template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import api, quantity
from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.values import NewPod

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """Where an object lives in the API."""

    group_version: str  # "v1", "policy/v1", ...
    plural: str


RESOURCES: Final = {
    "volcano": Resource("scheduling.volcano.sh/v1beta1", "podgroups"),
    "scheduler-plugins": Resource("scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "kai": Resource("scheduling.run.ai/v2alpha2", "podgroups"),
}
# Of a spec that exists: the parts that may be changed, where not all may.
CHANGEABLE: Final = {"scheduling.k8s.io/v1beta1": ("schedulingPolicy",), "scheduling.k8s.io/v1alpha2": ()}
_VOLCANO_QUEUE: Final = "scheduling.volcano.sh/queue-name"  # annotation
_KAI_QUEUE: Final = "kai.scheduler/queue"  # label


def build_group(spec: api.Spec, flavour: str) -> Object:
    """The spec of the PodGroup that this scheduler knows."""
    described = spec.template.get("metadata") or {}
    priority = spec.template["spec"].get("priorityClassName")
    if flavour == "kubernetes":
        policy: Object = {"schedulingPolicy": {"gang": {"minCount": spec.min_replicas}}}
        return {**policy, "priorityClassName": priority} if priority else policy
    group: Object = {"minMember": spec.min_replicas}
    if flavour in ("volcano", "scheduler-plugins"):
        least = find_least(spec)
        if least:
            group["minResources"] = least
    queue = ""
    if flavour == "volcano":
        queue = (described.get("annotations") or {}).get(_VOLCANO_QUEUE, "")
    elif flavour == "kai":
        queue = (described.get("labels") or {}).get(_KAI_QUEUE, "")
    if queue:
        group["queue"] = queue
    if priority and flavour in ("volcano", "kai"):
        group["priorityClassName"] = priority
    return group


def tie(pod: Object, job: Job, spec: api.Spec, new: NewPod) -> None:
    """Let a pod belong to the job's group. Kubernetes and KAI take the pods above the minimum in it too."""
    name, described = names.pod_group_name(job.name), pod["metadata"]
    if new.gang == "kubernetes":
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
    elif new.gang == "kai":
        described["annotations"] |= {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}
    elif new.index >= spec.min_replicas:
        return  # extras are scheduled one by one
    elif new.gang == "volcano":
        described["annotations"]["scheduling.k8s.io/group-name"] = name
    elif new.gang == "scheduler-plugins":
        described["labels"]["scheduling.x-k8s.io/pod-group"] = name


def find_least(spec: api.Spec) -> dict[str, str]:
    """The requests of `minReplicas` pods; empty where a quantity cannot be read: the API server says what is wrong."""
    try:
        of_pod = quantity.add_pod_requests(spec.template["spec"])
    except ValueError:
        return {}
    return {name: quantity.write(amount * spec.min_replicas) for name, amount in sorted(of_pod.items())}
