"""PodGroups: what a scheduler has to know to place `minReplicas` pods together or not at all. Pure.

What names a queue or a class is where each scheduler's own users write it: in the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Job

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
_VOLCANO_QUEUE: Final = "scheduling.volcano.sh/queue-name"  # annotation
_KAI_QUEUE: Final = "kai.scheduler/queue"  # label
_SUFFIXES: Final = {
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def build_group(spec: api.Spec, flavour: str) -> Object:
    """The spec of the PodGroup that this scheduler knows."""
    described = spec.template.get("metadata") or {}
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
    priority = spec.template["spec"].get("priorityClassName")
    if priority and flavour in ("volcano", "kai"):
        group["priorityClassName"] = priority
    return group


def tie(pod: Object, job: Job, spec: api.Spec, flavour: str, index: int) -> None:
    """Lets a pod belong to the job's group. KAI takes the pods above the minimum in it too, one by one."""
    name, described = names.pod_group_name(job.name), pod["metadata"]
    if flavour == "kai":
        described["annotations"] |= {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}
    elif index >= spec.min_replicas:
        return  # extras are scheduled one by one
    elif flavour == "volcano":
        described["annotations"]["scheduling.k8s.io/group-name"] = name
    elif flavour == "scheduler-plugins":
        described["labels"]["scheduling.x-k8s.io/pod-group"] = name


def find_least(spec: api.Spec) -> dict[str, str]:
    """The requests of `minReplicas` pods; empty where a quantity cannot be read: the API server says what is wrong."""
    try:
        of_pod = _add(_requests(c) for c in spec.template["spec"]["containers"])
    except (ValueError, InvalidOperation):
        return {}
    return {name: write_quantity(amount * spec.min_replicas) for name, amount in sorted(of_pod.items())}


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: read_quantity(value) for name, value in wanted.items()}


def _add(parts: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def read_quantity(value: object) -> Decimal:
    """A quantity of Kubernetes: `500m`, `8Gi`, `2`, `1e3`. ValueError or InvalidOperation for what is none."""
    text = str(value).strip()
    suffix = next((s for s in sorted(_SUFFIXES, key=len, reverse=True) if text.endswith(s)), "")
    number = Decimal(text.removesuffix(suffix))
    if not number.is_finite():
        raise ValueError(f"{text} is no quantity")
    return number * _SUFFIXES.get(suffix, Decimal(1))


def write_quantity(amount: Decimal) -> str:
    """As a whole number, or in thousandths."""
    whole = amount.to_integral_value()
    return str(int(whole)) if whole == amount else f"{int((amount * 1000).to_integral_value(ROUND_CEILING))}m"
