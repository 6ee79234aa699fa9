"""Jobs with every kind of name that the API server accepts."""

from __future__ import annotations

from typing import Any

import pytest

from operator_fixture import Jobs, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama-3.1-8b", id="dots"),
        pytest.param("3d-unet", id="digit first"),
        pytest.param("a" * 57, id="a hostname cut at 63 would lose the index"),
        pytest.param("b" * 64, id="longer than a label"),
        pytest.param("c" * 120 + "." + "d" * 132, id="as long as a name can be"),
    ],
)
def test_every_name_trains(jobs: Jobs, name: str) -> None:
    jobs.create(name, light_spec(replicas=3, network={"service": True}))
    status = jobs.await_world(name, 3)
    path = f"/api/v1/namespaces/{jobs.namespace}/pods?labelSelector={status['selector']}"
    specs = [pod["spec"] for pod in jobs.kube.request("GET", path)["items"]]
    assert len({spec["hostname"] for spec in specs}) == 3
    services = f"/api/v1/namespaces/{jobs.namespace}/services"
    found = wait_for(lambda: jobs.kube.request("GET", services)["items"], "the Service exists")
    assert [s["metadata"]["name"] for s in found] == [specs[0]["subdomain"]]
    assert (
        found[0]["spec"]["selector"].items() <= jobs.kube.request("GET", path)["items"][0]["metadata"]["labels"].items()
    )
    assert jobs.condition(name, "Degraded").get("status") != "True", "no object of the job was refused"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "a" * 57, "b" * 64])
def test_the_endpoint_is_where_the_first_pod_is(jobs: Jobs, name: str) -> None:
    spec = light_spec(replicas=1, rendezvous={"backend": "c10d"})
    spec["template"]["spec"]["containers"][0]["command"] = ["sleep", "100"]
    jobs.create(name, spec)

    def look() -> dict[str, Any] | None:
        pods = jobs.kube.request("GET", f"/api/v1/namespaces/{jobs.namespace}/pods")["items"]
        return pods[0]["spec"] if pods else None

    pod = wait_for(look, "the first pod exists")
    endpoint = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}["PET_RDZV_ENDPOINT"]
    assert endpoint == f"{pod['hostname']}.{pod['subdomain']}.{jobs.namespace}:29400"
