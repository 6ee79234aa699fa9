"""Builds the children other than pods: Service, disruption budget, network policy, certificate, pod group. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.apply.manifests import gangs
from elasticjob_operator.apply.manifests.common import Object, Settings, metadata
from elasticjob_operator.apply.manifests.gangs import Resource
from elasticjob_operator.apply.manifests.patches import merge_patch
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.values import Child, Kind

RESOURCES = {
    Kind.SERVICE: Resource("v1", "services"),
    Kind.CONFIG_MAP: Resource("v1", "configmaps"),
    Kind.NETWORK_POLICY: Resource("networking.k8s.io/v1", "networkpolicies"),
    Kind.DISRUPTION_BUDGET: Resource("policy/v1", "poddisruptionbudgets"),
}


def resource_of(child: Child) -> Resource:
    if child.kind is Kind.POD_GROUP:
        return gangs.RESOURCES[str(dict(child.values).get("flavour"))]
    return RESOURCES[child.kind]


def build_child(job: Job, child: Child, settings: Settings, policy_version: str = "policy/v1") -> Object:
    """The manifest of a child. `policy_version`: the API version that the cluster serves for PodDisruptionBudgets."""
    values = dict(child.values)
    described = metadata(job, child.name, {names.ANNOTATION_DIGEST: child.digest})
    ours = {"matchLabels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid}}
    if child.kind is Kind.SERVICE:
        service = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: job.name},
            "ports": [
                {"name": "rendezvous", "port": names.C10D_PORT, "targetPort": names.C10D_PORT, "protocol": "TCP"}
            ],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": described, "spec": service}
    if child.kind is Kind.CONFIG_MAP:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": values}
    if child.kind is Kind.DISRUPTION_BUDGET:
        budget = {"minAvailable": values["minAvailable"], "selector": ours}
        return {"apiVersion": policy_version, "kind": child.kind.value, "metadata": described, "spec": budget}
    if child.kind is Kind.NETWORK_POLICY:
        peers = {"podSelector": {"matchLabels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid}}}
        rules = {"podSelector": ours, "policyTypes": ["Ingress"], "ingress": [{"from": [peers]}]}
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": described, "spec": rules}
    assert job.spec is not None, "a gang is planned for valid jobs only"
    return {
        "apiVersion": resource_of(child).group_version,
        "kind": "PodGroup",
        "metadata": described,
        "spec": gangs.build_group(job.spec, values["flavour"]),
    }


def correct_child(kind: Kind, found: Mapping[str, Any], wanted: Object) -> Object:
    """The merge patch from the found object to the wanted one; empty if nothing differs.

    For a Service and a PodGroup only the operator's own fields are set: other components add fields, some immutable.
    """
    before: Object = {key: found.get(key) or {} for key in ("spec", "data") if key in wanted}
    after: Object = {key: wanted[key] for key in before}
    change = merge_patch(before, after, is_whole=kind not in (Kind.SERVICE, Kind.POD_GROUP))
    annotations = wanted["metadata"].get("annotations", {})
    if merge_patch(found["metadata"].get("annotations") or {}, annotations, is_whole=False):
        change["metadata"] = {"annotations": annotations}
    return change
