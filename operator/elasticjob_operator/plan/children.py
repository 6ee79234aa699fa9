"""The child objects other than pods, from the Service to the autoscaler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.ownership import POD, Dependent
from elasticjob_operator.plan.values import Child, Config, Kind

# What the operator deletes of a deleted job. It has no right to delete certificates and pod groups.
_WITH_PODS = {Kind.DISRUPTION_BUDGET: names.disruption_budget_name, Kind.AUTOSCALER: names.autoscaler_name}
_AFTER_PODS = {Kind.NETWORK_POLICY: names.network_policy_name, Kind.SERVICE: names.service_name}


def wanted_children(job: Job, spec: api.Spec, config: Config) -> tuple[Child, ...]:
    """The child objects that a running job should have, other than pods."""
    children: list[Child] = []
    if needs_service(spec):
        children.append(Child(Kind.SERVICE, names.service_name(job.name)))
    if job.status.rendezvous.generation:  # before its first world, a job has nothing that a drain should wait for
        minimum = (("minAvailable", spec.min_replicas),)
        children.append(Child(Kind.DISRUPTION_BUDGET, names.disruption_budget_name(job.name), minimum))
    if spec.network.policy and not spec.template["spec"].get("hostNetwork"):
        children.append(Child(Kind.NETWORK_POLICY, names.network_policy_name(job.name)))
    if config.ca_pem:
        children.append(Child(Kind.CONFIG_MAP, names.ca_config_map_name(job.name), (("ca.crt", config.ca_pem),)))
    gang = find_gang(spec, config)
    if gang and not job.lacks_template:
        # Queue, class and resources are the template's.
        values = (("flavour", gang), ("minMember", spec.min_replicas), ("template", spec.template_hash))
        children.append(Child(Kind.POD_GROUP, names.pod_group_name(job.name), values))
    policy = spec.elastic_policy
    if policy.metrics:
        bounds = (("minReplicas", spec.min_replicas), ("maxReplicas", spec.max_replicas))
        children.append(Child(Kind.AUTOSCALER, names.autoscaler_name(job.name), (*bounds, ("metrics", policy.metrics))))
    return tuple(children)


def unwanted_children(wanted: Sequence[Child], existing: Mapping[tuple[str, str], str], job: Job) -> tuple[Child, ...]:
    """Existing objects that the spec no longer asks for, except the certificate, which running pods have mounted."""
    switched = (
        Child(Kind.SERVICE, names.service_name(job.name)),
        Child(Kind.NETWORK_POLICY, names.network_policy_name(job.name)),
        Child(Kind.AUTOSCALER, names.autoscaler_name(job.name)),
    )
    kinds = {child.kind for child in wanted}
    return tuple(c for c in switched if c.kind not in kinds and (c.kind.value, c.name) in existing)


def choose_left_over(job: str, left: Sequence[Dependent]) -> tuple[Dependent, ...]:
    """What to delete now of what the deleted job of this name has left; what its pods need goes after them.

    Only pods and what bears the names that the operator gives: all else is left to the garbage collector.
    """
    pods = [one for one in left if one.kind == POD]
    kinds = _WITH_PODS if pods else {**_WITH_PODS, **_AFTER_PODS}
    ours = {(kind.value, name(job)) for kind, name in kinds.items()}
    return (*(pod for pod in pods if not pod.is_going), *(one for one in left if (one.kind, one.name) in ours))


def needs_service(spec: api.Spec) -> bool:
    """Whether pods must be resolvable by name. With the operator's rendezvous they connect by address.

    A Service costs more than one write: the cluster keeps all addresses of the job in two more objects, and rewrites
    both whenever a pod is created, deleted or becomes ready.
    """
    return spec.network.service or spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR


def needs_write(child: Child, existing: Mapping[tuple[str, str], str]) -> bool:
    """Whether the object is missing or outdated.

    Pod groups are not watched, since most clusters do not have the kind. The operator knows only those that it wrote
    itself, so it writes each of them once after its start."""
    return existing.get((child.kind.value, child.name)) != child.digest


def choose_gang(spec: api.Spec, config: Config, pods: Iterable[Pod]) -> str:
    """The scheduler whose PodGroup the new pods of a job join, beside these pods.

    Kubernetes' own scheduler counts only pods of the group. Where pods have a node, which may have joined none, others
    come one by one.
    """
    gang = find_gang(spec, config)
    has_started = gang == "kubernetes" and any(pod.live and pod.node for pod in pods)
    return "" if has_started else gang


def find_gang(spec: api.Spec, config: Config) -> str:
    """The scheduler that needs a PodGroup: "kubernetes", "volcano", "kai" or "scheduler-plugins"; "" for any other.

    A template that names a group of its own gets none.
    """
    pod = spec.template["spec"]
    scheduler = pod.get("schedulerName", "")
    if scheduler in ("", "default-scheduler"):
        return "kubernetes" if config.has_native_gangs and not pod.get("schedulingGroup") else ""
    if scheduler in ("volcano", "kai-scheduler"):
        return str(scheduler.removesuffix("-scheduler"))
    return "scheduler-plugins" if scheduler.startswith("scheduler-plugins") else ""
