"""The target of the hub's Service."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.hub import endpoint

SERVICE: dict[str, Any] = {
    "metadata": {"name": "hub", "namespace": "ops", "uid": "u1"},
    "spec": {"clusterIP": "10.96.0.7"},
}


@pytest.mark.parametrize(
    ("selector", "address", "ours"),
    [
        pytest.param(None, "10.0.0.1", True, id="nobody says where it leads"),
        pytest.param({}, "10.0.0.1", True, id="an empty selector is none"),
        pytest.param({"app": "x"}, "10.0.0.1", False, id="it selects its pods itself"),
        pytest.param(None, "", False, id="not in a pod"),
    ],
)
def test_whose_business_it_is(selector: dict[str, str] | None, address: str, ours: bool) -> None:
    service = {**SERVICE, "spec": {"selector": selector} if selector is not None else {}}
    assert endpoint.is_ours_to_point(service, address) is ours


def test_the_slice_belongs_to_the_service_and_names_one_address() -> None:
    made = endpoint.build_slice(SERVICE, "discovery.k8s.io/v1", "10.0.0.1", 8443)
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "hub"
    assert [o["uid"] for o in made["metadata"]["ownerReferences"]] == ["u1"]
    assert made["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    assert made["ports"] == [{"name": "hub", "port": 8443, "protocol": "TCP"}]
    assert made["addressType"] == "IPv4"


def test_addresses_of_both_kinds() -> None:
    assert endpoint.build_slice(SERVICE, "discovery.k8s.io/v1", "fd00::7", 1)["addressType"] == "IPv6"
