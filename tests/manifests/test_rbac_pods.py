"""The objects that the operator creates grant no more than the author of the job has requested."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from controller.builders import make_job, make_spec
from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.plan.values import Child, Kind, NewPod

Object = dict[str, Any]
SETTINGS = manifests.Settings(hub_url="wss://10.96.0.7:8443", tls=True, runtime_image="r:1", worker_image="w:1")

TEMPLATES: dict[str, Object] = {
    "plain": {"containers": [{"name": "a", "image": "i"}]},
    "restricted": {
        "serviceAccountName": "mine",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "a",
                "image": "i",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            },
            {"name": "b", "image": "j"},
        ],
        "initContainers": [{"name": "c", "image": "k"}],
    },
    "privileged": {
        "hostNetwork": True,
        "automountServiceAccountToken": True,
        "containers": [{"name": "a", "image": "i", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}],
    },
}
CASES = [pytest.param(spec, id=name) for name, spec in TEMPLATES.items()]


def build(pod_spec: Object, settings: manifests.Settings = SETTINGS) -> Object:
    spec = make_spec(template={"spec": copy.deepcopy(pod_spec)})
    return manifests.build_pod(make_job(spec), spec, NewPod(0), settings)


@pytest.mark.parametrize("template", CASES)
def test_the_template_is_neither_weakened_nor_given_more(template: Object) -> None:
    body = build(template)["spec"]
    for key in ("securityContext", "serviceAccountName", "hostNetwork", "hostPID", "hostIPC"):
        assert body.get(key) == template.get(key)
    theirs = {c["name"]: c for c in template["containers"] + template.get("initContainers", [])}
    made = {c["name"]: c for c in body["containers"] + body["initContainers"]}
    assert made.keys() - theirs.keys() == {"elasticjob-runtime"}
    for name, container in theirs.items():
        assert made[name].get("securityContext") == container.get("securityContext")
        assert made[name]["image"] == container["image"]
    assert body["automountServiceAccountToken"] is template.get("automountServiceAccountToken", False)


@pytest.mark.parametrize("template", CASES)
def test_what_is_added_is_restricted(template: Object) -> None:
    body = build(template)["spec"]
    init = body["initContainers"][0]
    assert init["securityContext"]["allowPrivilegeEscalation"] is False
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert init["securityContext"]["runAsNonRoot"] is True
    assert init["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    ours = [v for v in body["volumes"] if v["name"].startswith("elasticjob-")]
    assert {kind for volume in ours for kind in volume} == {"name", "projected", "emptyDir"}


def test_the_token_is_for_the_hub_alone_and_only_the_trainer_has_it() -> None:
    body = build(TEMPLATES["restricted"])["spec"]
    volume = next(v for v in body["volumes"] if v["name"] == names.VOLUME_TOKEN)
    tokens = [s["serviceAccountToken"] for s in volume["projected"]["sources"] if "serviceAccountToken" in s]
    assert [t["audience"] for t in tokens] == [names.TOKEN_AUDIENCE]
    assert tokens[0]["expirationSeconds"] <= 3600
    mounting = [
        c["name"]
        for c in body["containers"] + body["initContainers"]
        if any(m["name"] == names.VOLUME_TOKEN for m in c.get("volumeMounts") or ())
    ]
    assert mounting == ["a"]


def test_nothing_is_made_outside_of_the_jobs_namespace_or_without_an_owner() -> None:
    spec = make_spec()
    job = make_job(spec)
    values: dict[Kind, tuple[tuple[str, Any], ...]] = {
        Kind.SERVICE: (),
        Kind.NETWORK_POLICY: (),
        Kind.CONFIG_MAP: (("ca.crt", "pem"),),
        Kind.DISRUPTION_BUDGET: (("minAvailable", 2),),
        Kind.AUTOSCALER: (("metrics", []),),
    }
    children = [Child(kind, "digits-x", value) for kind, value in values.items()]
    made = [build(TEMPLATES["plain"]), *(manifests.build_child(job, child) for child in children)]
    for item in made:
        assert item["metadata"]["namespace"] == job.namespace
        assert [o["uid"] for o in item["metadata"]["ownerReferences"]] == [job.uid]
    policy = next(o for o in made if o["kind"] == "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert "namespaceSelector" not in json.dumps(policy), "pods of other namespaces stay out"
