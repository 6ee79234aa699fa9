"""A pod template with anything in any place: the operator refuses it by its place, or goes on to ask the API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from elasticjob_operator.api import podtemplate
from elasticjob_operator.apply import manifests
from elasticjob_operator.apply.manifests.pods import without_shm
from elasticjob_operator.model import observe
from elasticjob_operator.plan.plan import NewPod

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "train:1",
                "command": ["torchrun", "train.py"],
                "args": ["--lr", "0.1"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}],
                "envFrom": [{"secretRef": {"name": "keys"}}],
                "ports": [{"name": "metrics", "containerPort": 9000}],
                "resources": {
                    "limits": {"nvidia.com/gpu": 1, "cpu": "2"},
                    "requests": {"memory": "1Gi"},
                    "claims": [{"name": "gpu"}],
                },
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a"}],
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
                "livenessProbe": {"exec": {"command": ["true"]}},
                "securityContext": {"runAsUser": 1000},
            },
            {"name": "logs", "image": "logs:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        ],
        "initContainers": [
            {"name": "download", "image": "curl:1", "restartPolicy": "Always", "env": [{"name": "A", "value": "1"}]}
        ],
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            },
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
        },
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}],
        "nodeSelector": {"disk": "fast"},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        "imagePullSecrets": [{"name": "registry"}],
        "schedulingGates": [{"name": "gate"}],
        "securityContext": {"fsGroup": 1},
        "dnsConfig": {"options": [{"name": "ndots"}]},
        "schedulerName": "default-scheduler",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "activeDeadlineSeconds": 100,
        "priorityClassName": "high",
        "serviceAccountName": "trainer",
        "hostname": "h",
        "subdomain": "s",
        "hostNetwork": False,
        "overhead": {"cpu": "1"},
        "os": {"name": "linux"},
    },
}
ANYTHING: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    2**70,
    "",
    "text",
    [],
    ["text"],
    [1],
    [None],
    [{}],
    [[]],
    {},
    {"a": 1},
    {"name": []},
)


def find_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from find_places(part, (*path, key))


def put(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    whole = copy.deepcopy(TEMPLATE)
    where = whole
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return whole


@pytest.mark.parametrize("path", list(find_places(TEMPLATE)), ids=lambda path: ".".join(map(str, path)))
def test_any_part_may_be_anything(path: tuple[Any, ...]) -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1", "generation": 1}
    for value in ANYTHING:
        job = observe.observe_job({"metadata": metadata, "spec": {"template": put(path, value)}})
        if job.spec is None:
            assert all(problem.field for problem in job.problems), value
            continue
        observe.resolve_nproc(job.spec)
        podtemplate.find_shape(job.spec.template)
        podtemplate.find_mount(job.spec.template, "/data/x")
        pod = manifests.build_pod(job, job.spec, NewPod(0, ()), manifests.Settings(hub_url="ws://hub"))
        without_shm(pod)
