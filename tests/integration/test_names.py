"""Jobs with every kind of name that the API server accepts. They train side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from elasticjob_operator.api import names
from operator_fixture import Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


NAMES = {
    "dots": "llama-3.1-8b",
    "digit first": "3d-unet",
    "a hostname cut at 63 would lose the index": "a" * 57,
    "longer than a label": "b" * 64,
    "as long as a name can be": "c" * 120 + "." + "d" * 132,
    "the start of the name of another's Service": names.service_name("llama-3.1-8b").removesuffix("-workers"),
    "the label of another": names.label("b" * 64),
}


def read_pods(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    selector = jobs.status(name)["selector"]
    path = f"/api/v1/namespaces/{jobs.namespace}/pods?labelSelector={selector}"
    items: list[dict[str, Any]] = jobs.kube.request("GET", path)["items"]
    return items


def test_every_name_trains(jobs: Jobs) -> None:
    for name in NAMES.values():
        jobs.create(name, light_spec(replicas=2, network={"service": True}))
    for kind, name in NAMES.items():
        jobs.await_world(name, 2)
        pods = read_pods(jobs, name)
        assert len({pod["spec"]["hostname"] for pod in pods}) == len(pods) == 2, kind
        service = f"/api/v1/namespaces/{jobs.namespace}/services/{pods[0]['spec']['subdomain']}"
        found = wait_for(partial(jobs.kube.get, service), f"the Service of the name with {kind}")
        assert found["spec"]["selector"].items() <= pods[0]["metadata"]["labels"].items(), kind
        assert jobs.condition(name, "Degraded").get("status") != "True", f"{kind}: no object of the job was refused"
    services = jobs.kube.request("GET", f"/api/v1/namespaces/{jobs.namespace}/services")["items"]
    assert len(services) == len(NAMES), "each job has one of its own"


def test_a_generated_name_trains(jobs: Jobs) -> None:
    head = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob"}
    body = {**head, "metadata": {"generateName": "llama-3.1-"}, "spec": light_spec(replicas=1)}
    name = jobs.kube.request("POST", jobs.path, body)["metadata"]["name"]
    assert name.startswith("llama-3.1-") and len(name) > len("llama-3.1-")
    jobs.await_world(name, 1)
    assert len(read_pods(jobs, name)) == 1


def test_the_endpoint_is_where_the_first_pod_is(jobs: Jobs) -> None:
    names = ("llama-3.1-8b", "3d-unet", "a" * 57, "b" * 64)
    spec = light_spec(replicas=1, rendezvous={"backend": "c10d"})
    spec["template"]["spec"]["containers"][0]["command"] = ["sleep", "100"]
    for name in names:
        jobs.create(name, spec)

    def look() -> list[dict[str, Any]]:
        pods = jobs.kube.request("GET", f"/api/v1/namespaces/{jobs.namespace}/pods")["items"]
        return [pod["spec"] for pod in pods] if len(pods) == len(names) else []

    for pod in wait_for(look, "the first pods exist"):
        endpoint = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}["PET_RDZV_ENDPOINT"]
        assert endpoint == f"{pod['hostname']}.{pod['subdomain']}.{jobs.namespace}:29400"
