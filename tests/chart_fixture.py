"""Renders the chart with the real Helm engine."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "manifests" / "chart" / "elasticjob"
Object = dict[str, Any]

# Every branch of the chart is in one of these.
MATRIX: dict[str, Object] = {
    "defaults": {},
    "laptop": {
        "replicas": 1,
        "leaderElection": {"enabled": False},
        "tls": {"mode": "disabled"},
        "images": {"runtime": {"enabled": False}},
        "hub": {"service": {"leaderOnly": False}},
        "networkPolicy": {"enabled": False},
    },
    "namespaced": {"watchNamespaces": ["team-a", "team-b"], "rbac": {"nodes": False}},
    "namespaced-own": {"watchNamespaces": ["elasticjob-system"]},
    "cert-manager": {"tls": {"mode": "certManager"}},
    "cert-manager-issuer": {
        "tls": {"mode": "certManager", "certManager": {"issuerRef": {"kind": "ClusterIssuer", "name": "corp"}}},
        "hub": {"service": {"clusterIP": "10.96.7.7"}},
    },
    "own-secret": {"tls": {"mode": "secret", "secretName": "mine"}, "hub": {"url": "wss://hub.example.com:443"}},
    "monitoring": {
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    },
    "no-metrics": {"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}},
    "mirror": {
        "imageRegistry": "registry.example.com/mirror/",
        "imagePullSecrets": [{"name": "pull"}],
        "images": {"operator": {"digest": "sha256:" + "0" * 64}, "worker": {"tag": "9"}},
    },
    "dressed": {
        "fullnameOverride": "ej",
        "commonLabels": {"team": "ml"},
        "commonAnnotations": {"owner": "ml@example.com"},
        "podLabels": {"sidecar": "no"},
        "podAnnotations": {"scrape": "yes"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "operator": {"extraArgs": ["--hub-host=::"], "extraEnv": [{"name": "A", "value": "b"}]},
        "rbac": {"gangScheduling": {"volcano": True, "schedulerPlugins": True}, "aggregate": False},
        "serviceAccount": {"annotations": {"cloud": "role"}},
    },
    "foreign-account": {"serviceAccount": {"create": False, "name": "theirs"}, "rbac": {"create": False}},
    "pools": {
        "pools": [
            {
                "name": "a100",
                "resource": "nvidia.com/gpu",
                "nodeSelector": {"accelerator": "a100"},
                "prices": [{"perHour": 0.9, "nodeSelector": {"capacity-type": "spot"}}, {"perHour": 3}],
            },
            {"name": "cpu", "resource": "cpu"},
        ],
        "poolObjective": "completion",
    },
    "no-crd": {"crds": {"install": False}},
    "crd-goes": {"crds": {"keep": False}},
}


def render(
    values: Object | None = None, *, namespace: str = "elasticjob-system", name: str = "elasticjob"
) -> list[Object]:
    """All objects of a release."""
    objects: list[Object] = json.loads(_render(json.dumps(values or {}), namespace, name))
    return objects


@functools.cache
def _render(values: str, namespace: str, name: str) -> str:
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(json.loads(values), name=name, namespace=namespace)
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return json.dumps([document for text in texts for document in yaml.load_all(text, loader) if document])


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of this kind (and name)."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name or ''}: {[o['metadata']['name'] for o in found]}"
    return found[0]


def container(objects: list[Object]) -> Object:
    spec: Object = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return spec
