"""Builds the children other than pods, from the Service to the autoscaler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.apply.manifests import gangs
from elasticjob_operator.apply.manifests.common import Object, metadata
from elasticjob_operator.apply.manifests.gangs import Resource
from elasticjob_operator.apply.manifests.patches import merge_patch
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.values import Child, Kind

_EVERYWHERE = {
    Kind.SERVICE: Resource("v1", "services"),
    Kind.CONFIG_MAP: Resource("v1", "configmaps"),
    Kind.NETWORK_POLICY: Resource("networking.k8s.io/v1", "networkpolicies"),
}
_BY_CLUSTER = {
    Kind.DISRUPTION_BUDGET: "poddisruptionbudgets",
    Kind.AUTOSCALER: "horizontalpodautoscalers",
    Kind.POD_GROUP: "podgroups",  # of Kubernetes' own scheduler
}


def resource_of_kind(kind: Kind, served: Served) -> Resource:
    """Where objects of this kind live in this cluster, but for PodGroups of schedulers that bring their own."""
    if kind in _BY_CLUSTER:
        return Resource(served.version_of(kind.value), _BY_CLUSTER[kind])
    return _EVERYWHERE[kind]


def resource_of(child: Child, served: Served) -> Resource:
    """Where this object lives in this cluster."""
    of_scheduler = gangs.RESOURCES.get(str(dict(child.values).get("flavour")))
    return of_scheduler or resource_of_kind(child.kind, served)


def build_child(job: Job, child: Child, served: Served = Served()) -> Object:
    """The manifest of a child."""
    values, version = dict(child.values), resource_of(child, served).group_version
    described = metadata(job, child.name, {names.ANNOTATION_DIGEST: child.digest})
    ours = {"matchLabels": {names.LABEL_JOB: names.label(job.name), names.LABEL_JOB_UID: job.uid}}
    if child.kind is Kind.SERVICE:
        service = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: names.label(job.name)},
            "ports": [
                {"name": "rendezvous", "port": names.C10D_PORT, "targetPort": names.C10D_PORT, "protocol": "TCP"}
            ],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": described, "spec": service}
    if child.kind is Kind.CONFIG_MAP:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": values}
    if child.kind is Kind.DISRUPTION_BUDGET:
        budget = {"minAvailable": values["minAvailable"], "selector": ours}
        return {"apiVersion": version, "kind": child.kind.value, "metadata": described, "spec": budget}
    if child.kind is Kind.NETWORK_POLICY:
        rules = {"podSelector": ours, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": ours}]}]}
        return {"apiVersion": version, "kind": "NetworkPolicy", "metadata": described, "spec": rules}
    if child.kind is Kind.AUTOSCALER:
        target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name}
        scaler = {"scaleTargetRef": target, **values}
        return {"apiVersion": version, "kind": child.kind.value, "metadata": described, "spec": scaler}
    assert job.spec is not None, "a gang is planned for valid jobs only"
    return {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": described,
        "spec": gangs.build_group(job.spec, values["flavour"]),
    }


def correct_child(kind: Kind, found: Mapping[str, Any], wanted: Object) -> Object:
    """The merge patch from the found object to the wanted one; empty if nothing differs.

    Of some kinds only the operator's own fields are set: others add fields, some of them immutable. Users may give an
    autoscaler a `behavior`.
    """
    before: Object = {key: found.get(key) or {} for key in ("spec", "data") if key in wanted}
    after: Object = {key: wanted[key] for key in before}
    changeable = gangs.CHANGEABLE.get(wanted["apiVersion"])
    if changeable is not None:
        after = {"spec": {key: wanted["spec"][key] for key in changeable}}
    change = merge_patch(before, after, is_whole=kind not in (Kind.SERVICE, Kind.POD_GROUP, Kind.AUTOSCALER))
    annotations = wanted["metadata"].get("annotations", {})
    if merge_patch(found["metadata"].get("annotations") or {}, annotations, is_whole=False):
        change["metadata"] = {"annotations": annotations}
    return change
