"""Where a pool is: nodes, resources, and what is free."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Node, PoolShare, observe_pod, observe_stranger
from elasticjob_operator.pool.capacity import (
    Pool,
    add_rates,
    count_capacity,
    count_devices,
    count_held,
    count_units,
    find_devices,
    find_pool,
    find_share,
    parse_pool,
    parse_rate,
)

GPU = Pool("gpu", "nvidia.com/gpu", {"class": "a100"})
REST = Pool("rest", "nvidia.com/gpu")
CPU = Pool("cpu", "cpu")


def node(resources: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": resources}}


def template(selector: dict[str, str] | None = None, **limits: str) -> dict[str, Any]:
    resources = {"limits": {name.replace("_", "/"): value for name, value in limits.items()}}
    return {"spec": {"containers": [{"name": "w", "resources": resources}], "nodeSelector": selector or {}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu=nvidia.com/gpu", Pool("gpu", "nvidia.com/gpu")),
        ("a=cpu,zone=x,kind=y", Pool("a", "cpu", {"zone": "x", "kind": "y"})),
    ],
)
def test_a_pool_is_a_resource_and_labels(text: str, expected: Pool) -> None:
    assert parse_pool(text) == expected


@pytest.mark.parametrize("text", ["", "gpu", "=cpu", "gpu=", "gpu=cpu,zone"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=RESOURCE"):
        parse_pool(text)


@pytest.mark.parametrize(
    ("resource", "quantity", "units"),
    [
        ("nvidia.com/gpu", "8", 8),
        ("nvidia.com/gpu", 2, 2),
        ("cpu", "500m", 500),
        ("cpu", "2", 2000),
        ("cpu", "1.5", 1500),
        ("memory", "1Ki", 1024),
        ("memory", "2k", 2000),
        ("cpu", "", 0),
        ("cpu", None, 0),
        ("cpu", "-1", 0),
        ("cpu", "much", 0),
        ("cpu", "NaN", 0),
        ("cpu", "Infinity", 0),
    ],
)
def test_quantities(resource: str, quantity: object, units: int) -> None:
    assert count_units(resource, quantity) == units


def test_a_node_belongs_to_the_first_pool_that_it_matches() -> None:
    """Two pools overlap: no device is counted twice."""
    pools = (GPU, REST)
    assert find_share(pools, node({"nvidia.com/gpu": "8"}, **{"class": "a100"})) == PoolShare("gpu", 8, 0.0)
    assert find_share(pools, node({"nvidia.com/gpu": "4"})) == PoolShare("rest", 4, 0.0)
    assert find_share((GPU,), node({"nvidia.com/gpu": "4"})) == PoolShare("", 0, 0.0)
    assert find_share((CPU,), {"metadata": {"name": "n"}}) == PoolShare("cpu", 0, 0.0)


SELECTORS = st.dictionaries(st.sampled_from(["class", "zone"]), st.sampled_from(["x", "y"]))


@given(st.lists(SELECTORS, max_size=4), st.lists(st.tuples(SELECTORS, st.integers(0, 8)), max_size=6))
def test_however_pools_overlap_every_device_counts_once(
    selectors: list[dict[str, str]], machines: list[tuple[dict[str, str], int]]
) -> None:
    pools = [Pool(str(number), "nvidia.com/gpu", selector) for number, selector in enumerate(selectors)]
    shares = [find_share(pools, node({"nvidia.com/gpu": str(devices)}, **labels)) for labels, devices in machines]
    nodes = [Node(str(number), share=share) for number, share in enumerate(shares)]
    covered = [devices for labels, devices in machines if any(pool.matches(labels) for pool in pools)]
    assert sum(count_capacity(pool, nodes, {}) for pool in pools) == sum(covered)


SPOT = {"karpenter.sh/capacity-type": "spot"}


@pytest.mark.parametrize(
    ("pool", "labels", "expected"),
    [
        pytest.param("gpu", SPOT, 0.9, id="the first that suits"),
        pytest.param("gpu", {"zone": "own"}, 0.0, id="free"),
        pytest.param("gpu", {}, 2.8, id="all others"),
        pytest.param("cpu", SPOT, 0.05 / 1000, id="of a CPU, for a thousandth of it"),
        pytest.param("cpu", {}, 0.0, id="no price is known"),
    ],
)
def test_what_a_device_costs_an_hour(pool: str, labels: dict[str, str], expected: float) -> None:
    rates = [
        parse_rate(text)
        for text in (
            "gpu=0.9,karpenter.sh/capacity-type=spot",
            "cpu=0.05,karpenter.sh/capacity-type=spot",
            "gpu=0,zone=own",
            "gpu=2.8",
        )
    ]
    pools = add_rates((parse_pool("gpu=nvidia.com/gpu"), CPU), rates)
    (found,) = [one for one in pools if one.name == pool]
    assert found.find_rate(labels) == expected
    assert find_share((found,), node({"cpu": "1", "nvidia.com/gpu": "1"}, **labels)).device_rate == expected


@pytest.mark.parametrize("text", ["", "gpu", "gpu=", "=1", "gpu=cheap", "gpu=-1", "gpu=nan", "gpu=inf", "gpu=1,zone"])
def test_any_other_price_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="must be POOL=PRICE"):
        parse_rate(text)


def test_a_price_for_no_pool_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'tpu': no pool has this name; the pools are: gpu, rest"):
        add_rates((GPU, REST), [parse_rate("tpu=1")])


def test_a_job_belongs_to_the_first_pool_whose_resource_it_asks_for() -> None:
    assert find_pool((CPU, REST), template(nvidia_gpu="1")) is None, "nvidia/gpu is no resource of a pool"
    gpu = {"spec": {"containers": [{"name": "w", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
    assert find_pool((CPU, REST), gpu) is REST
    assert find_pool((CPU,), template()) is None
    assert find_pool((CPU,), template(cpu="2")) is CPU
    elsewhere = {"spec": {**gpu["spec"], "nodeSelector": {"class": "h100"}}}
    assert find_pool((GPU, REST), elsewhere) is REST, "its pods may not be on the nodes of the first"


def test_what_a_pod_holds() -> None:
    containers = [
        {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}},
        {"name": "b", "resources": {"limits": {"cpu": "1"}}},
        {"name": "c"},
    ]
    assert count_devices({"containers": containers}, "cpu") == 1500
    assert count_devices({"containers": containers}, "pods") == 1
    assert count_devices({}, "cpu") == 0


def test_what_is_free() -> None:
    nodes = [
        Node("a", share=PoolShare("gpu", 8)),
        Node("b", share=PoolShare("rest", 8)),
        Node("c", share=PoolShare("gpu", 4)),
    ]
    assert count_capacity(GPU, nodes, {}) == 12
    assert count_capacity(GPU, nodes, {"a": 3, "b": 8, "elsewhere": 5}) == 9
    assert count_capacity(GPU, nodes, {"a": 100}) == 4, "a node that is overbooked takes nothing from the others"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ready": False}, id="not ready"),
        pytest.param({"cordoned": True}, id="cordoned"),
        pytest.param({"leaving": "cloud.google.com/impending-node-termination"}, id="spot notice"),
    ],
)
def test_a_node_that_will_go_is_no_capacity(changes: dict[str, Any]) -> None:
    nodes = [Node("a", share=PoolShare("gpu", 8)), Node("b", share=PoolShare("gpu", 8), **changes)]
    assert count_capacity(GPU, nodes, {"b": 2}) == 8


LABELS = {names.LABEL_JOB: "j", names.LABEL_INDEX: "0"}
WORKER = {"name": "j-worker-0", "namespace": "t", "uid": "u", "labels": LABELS}


def asking(amount: int, **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": amount}}, **fields}


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        pytest.param({"containers": [asking(1), asking(2)]}, 3, id="containers"),
        pytest.param({"containers": [asking(1)], "initContainers": [asking(8)]}, 8, id="an init container before them"),
        pytest.param({"containers": [asking(4)], "initContainers": [asking(3), asking(2)]}, 4, id="smaller ones"),
        pytest.param(
            {"containers": [asking(1)], "initContainers": [asking(7, restartPolicy="Always")]}, 8, id="a native sidecar"
        ),
        pytest.param(
            {"containers": [asking(1)], "initContainers": [asking(2, restartPolicy="Always"), asking(6)]},
            8,
            id="an init container beside a sidecar",
        ),
        pytest.param(
            {"containers": [asking(1)], "initContainers": [asking(6), asking(2, restartPolicy="Always")]},
            6,
            id="an init container before a sidecar",
        ),
        pytest.param(
            {"containers": [asking(1)], "resources": {"requests": {"nvidia.com/gpu": 3}}}, 3, id="resources of the pod"
        ),
        pytest.param({"containers": [asking(1)], "overhead": {"nvidia.com/gpu": "1"}}, 2, id="overhead"),
    ],
)
def test_what_a_pod_holds_is_what_the_scheduler_counts(spec: dict[str, Any], devices: int) -> None:
    assert count_devices(spec, "nvidia.com/gpu") == devices
    held = find_devices((GPU, REST, CPU, Pool("all", "pods")), spec)
    assert held == (("nvidia.com/gpu", devices),)
    pod = observe_pod({"metadata": WORKER, "spec": spec, "status": {}}, held)
    assert pod is not None
    assert (count_held(pod, "nvidia.com/gpu"), count_held(pod, "cpu"), count_held(pod, "pods")) == (devices, 0, 1)
    stranger = observe_stranger({"metadata": WORKER, "spec": {**spec, "nodeName": "n"}, "status": {}}, held)
    assert stranger is not None
    assert count_held(stranger, "nvidia.com/gpu") == devices


@pytest.mark.parametrize(("kind", "devices"), [("containers", 1000), ("initContainers", 1)])
def test_each_of_many_containers_counts(kind: str, devices: int) -> None:
    spec = {"nodeName": "n", "containers": [asking(1)], kind: [asking(1)] * 1000}
    assert count_devices(spec, "nvidia.com/gpu") == devices
    assert count_capacity(GPU, [Node("n", share=PoolShare("gpu", 8))], {"n": 1000}) == 0
