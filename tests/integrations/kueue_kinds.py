"""Kueue's kinds: in the shape that its documentation gives them, or from its own files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import is_served, wait_for

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROOT = "/apis/kueue.x-k8s.io/v1beta2"
APPROVED = {"api-approved.kubernetes.io": "unapproved, for tests"}
ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
CONDITION = {
    "type": "object",
    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    "properties": {
        "type": TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "minLength": 1, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": NUMBER,
    },
}
COUNT = {"type": "object", "required": ["name", "count"], "properties": {"name": TEXT, "count": NUMBER}}
WORKLOAD = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "queueName": TEXT,
                "active": {"type": "boolean", "default": True},
                "priority": NUMBER,
                "priorityClassRef": {
                    "type": "object",
                    "required": ["group", "kind", "name"],
                    "properties": {"group": TEXT, "kind": TEXT, "name": TEXT},
                },
                "podSets": {
                    "type": "array",
                    "maxItems": 18,
                    "items": {
                        "type": "object",
                        "required": ["count", "template"],
                        "properties": {"name": TEXT, "count": NUMBER, "template": ANY, "topologyRequest": ANY},
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "conditions": {"type": "array", "maxItems": 16, "items": CONDITION},
                "admission": ANY,
                "reclaimablePods": {"type": "array", "items": COUNT},
            },
        },
    },
}
KINDS = {
    "workloads": ("Workload", "Namespaced", WORKLOAD),
    "localqueues": ("LocalQueue", "Namespaced", ANY),
    "clusterqueues": ("ClusterQueue", "Cluster", ANY),
    "resourceflavors": ("ResourceFlavor", "Cluster", ANY),
    "workloadpriorityclasses": ("WorkloadPriorityClass", "Cluster", ANY),
}


def build(version: str = "v1beta2") -> list[dict[str, Any]]:
    """The kinds as far as they matter here, served in this version."""
    found = []
    for plural, (kind, scope, schema) in KINDS.items():
        served = {
            "name": version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}} if plural == "workloads" else {},
        }
        named = {"plural": plural, "singular": kind.lower(), "kind": kind}
        spec = {"group": "kueue.x-k8s.io", "scope": scope, "names": named, "versions": [served]}
        found.append({"metadata": {"name": f"{plural}.kueue.x-k8s.io", "annotations": APPROVED}, "spec": spec})
    return found


def read(folder: Path) -> list[dict[str, Any]]:
    """Kueue's own files, without the webhook that would convert what nobody stores here."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        definition["spec"].pop("conversion", None)
        found.append(definition)
    return found


def find_own() -> list[dict[str, Any]]:
    """Kueue's own definitions, where they are given; they need Kubernetes 1.25."""
    folder = os.environ.get("ELASTICJOB_KUEUE_CRDS")
    return read(Path(folder)) if folder else []


def install(cluster: Cluster, definitions: list[dict[str, Any]]) -> None:
    for definition in definitions:
        try:
            cluster.kube.request("POST", CRDS, definition)
        except KubeError as error:
            if error.status != 409:
                raise
    wait_for(lambda: all(is_served(cluster, _path_of(d)) for d in definitions), "Kueue's kinds are served")


def _path_of(definition: dict[str, Any]) -> str:
    version, plural = definition["spec"]["versions"][-1]["name"], definition["spec"]["names"]["plural"]
    return f"/apis/kueue.x-k8s.io/{version}/{plural}"


def remove(cluster: Cluster, definitions: list[dict[str, Any]]) -> None:
    for definition in definitions:
        path = f"{CRDS}/{definition['metadata']['name']}"
        if cluster.kube.get(path):
            cluster.kube.request("DELETE", path)
    for definition in definitions:
        path = f"{CRDS}/{definition['metadata']['name']}"
        wait_for(lambda path=path: cluster.kube.get(path) is None, f"{path} is gone")  # type: ignore[misc]
