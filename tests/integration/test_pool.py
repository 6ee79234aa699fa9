"""Jobs that share a pool, through a real API server: three nodes with two GPUs each are six slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_operator.api import names
from operator_fixture import MERGE, Jobs, OperatorProcess, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def operator(
    cluster: Cluster, namespace: str, operator_factory: Callable[..., OperatorProcess]
) -> Iterator[OperatorProcess]:
    started = operator_factory(["--namespace", namespace, "--stable-seconds", "1"])
    yield started
    print(f"the operator of this test said:\n{started.log[-8000:]}")  # pytest shows it where the test failed
    assert "this is a bug" not in started.log
    started.stop()


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, operator: OperatorProcess) -> Jobs:
    return Jobs(cluster, namespace)


def pooled(shared: float = 0.95, **changes: Any) -> dict[str, Any]:
    """A job whose steps are divided among its pods to this extent, each with one GPU."""
    spec = light_spec("--step-seconds", "0.2", "--shared", str(shared), **changes)
    spec["scaling"] = {"mode": "Goodput"}
    spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 6, "gracefulShutdownTimeoutSeconds": 2}
    del spec["replicas"]
    container = spec["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "10m"}}
    return spec


def size(jobs: Jobs, name: str) -> int:
    return int(jobs.status(name).get("readyReplicas") or 0)


def test_one_job_has_the_pool_and_two_share_it(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("good", pooled(0.98))
    jobs.await_world("good", 6, timeout=120)
    scaling = jobs.status("good")["scaling"]
    assert scaling["pool"] == "default"
    assert scaling["size"] == scaling["wanted"] == 6
    assert scaling["expectedGainPercent"] > 100
    assert jobs.get("good")["metadata"]["annotations"]["elasticjob.dev/pool-replicas"] == "6"

    jobs.create("bad", pooled(0.3))
    wait_for(lambda: size(jobs, "bad") >= 1 and size(jobs, "good") + size(jobs, "bad") == 6, "they share", 90)

    def is_settled() -> bool:
        return size(jobs, "good") > size(jobs, "bad") >= 1

    wait_for(is_settled, "who scales has more", 90)
    wait_for(lambda: "other jobs gain more" in jobs.status("good")["scaling"]["reason"], "it is told why", 90)
    wait_for(lambda: len(jobs.status("good")["scaling"]["speeds"]) >= 2, "its speeds are kept", 90)

    operator.kill()
    jobs.delete("bad")
    operator.start()
    jobs.await_world("good", 6, timeout=150)
    speeds = {one["size"] for one in jobs.status("good")["scaling"]["speeds"]}
    assert 1 in speeds, "what was measured is not forgotten with the operator"


def test_a_template_that_asks_for_more_takes_nothing_before_pods_have_it(jobs: Jobs) -> None:
    """Its pods are not replaced by that, and hold what they were created with."""
    other = light_spec("--step-seconds", "0.2", replicas=1)
    jobs.create("other", other)
    jobs.await_world("other", 1, timeout=120)
    jobs.create("good", pooled(0.98))
    jobs.await_world("good", 6, timeout=120)
    other["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1000000"}}
    jobs.patch("other", {"template": other["template"]})
    jobs.create("second", pooled(0.3))
    wait_for(lambda: size(jobs, "second") >= 1, "they share", 90)
    wait_for(lambda: size(jobs, "good") + size(jobs, "second") == 6, "all devices are used", 30)


def test_pods_that_ask_for_nothing_leave_the_pool_to_the_jobs(jobs: Jobs) -> None:
    """One on each node, of as many containers as its author likes, of which only the first one ever runs."""
    runs = {"image": "a/b:1", "command": ["sleep", "600"]}
    spec = {"containers": [{"name": "c", **runs}], "initContainers": [{"name": f"i{n}", **runs} for n in range(300)]}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods"
    labels = {names.LABEL_APP: names.LABEL_APP_VALUE}
    for node in jobs.kube.request("GET", "/api/v1/nodes")["items"]:
        name = node["metadata"]["name"]
        body = {"metadata": {"name": f"crowd-{name}", "labels": labels}, "spec": {**spec, "nodeName": name}}
        jobs.kube.request("POST", path, body)
    jobs.create("good", pooled(0.98))
    jobs.await_world("good", 6, timeout=120)


def test_a_user_who_scales_pins_the_job_until_it_is_released(jobs: Jobs) -> None:
    jobs.create("mine", pooled())
    jobs.await_world("mine", 6, timeout=150)
    jobs.scale("mine", 2)
    jobs.await_world("mine", 2, timeout=150)
    wait_for(lambda: jobs.status("mine")["scaling"].get("pinned"), "it is told")
    assert "kubectl elasticjob scale mine auto" in jobs.status("mine")["scaling"]["reason"]

    jobs.create("other", pooled())
    jobs.await_world("other", 4, timeout=150)
    assert jobs.get("mine")["spec"]["replicas"] == 2

    jobs.kube.request("PATCH", f"{jobs.path}/other", {"spec": {"runPolicy": {"suspend": True}}}, content_type=MERGE)
    jobs.await_condition("other", "Suspended")
    jobs.patch("mine", {"replicas": None})
    jobs.await_world("mine", 6, timeout=150)
    assert "pinned" not in jobs.status("mine")["scaling"]


def test_a_pooled_job_follows_its_bounds(jobs: Jobs) -> None:
    """The number in `spec.replicas` is the pool's, and no reason to refuse a change of the file."""
    jobs.create("bounded", pooled())
    jobs.await_world("bounded", 6, timeout=150)
    jobs.patch("bounded", {"elasticPolicy": {"maxReplicas": 3}})
    jobs.await_world("bounded", 3, timeout=150)
    wait_for(lambda: jobs.get("bounded")["spec"]["replicas"] == 3, "the pool writes it")
    assert "pinned" not in jobs.status("bounded")["scaling"]


def test_a_job_that_joins_the_pool_is_not_pinned_by_the_default(jobs: Jobs) -> None:
    spec = pooled()
    jobs.create("joins", {**spec, "scaling": {"mode": "Manual"}})
    jobs.await_world("joins", 6, timeout=150)
    jobs.patch("joins", {"scaling": {"mode": "Goodput"}})
    wait_for(lambda: jobs.status("joins").get("scaling", {}).get("pool"), "it is in the pool", 90)
    assert "pinned" not in jobs.status("joins")["scaling"]


def test_a_node_that_is_cordoned_is_no_capacity(jobs: Jobs, cluster: Cluster) -> None:
    jobs.create("drained", pooled())
    status = jobs.await_world("drained", 6, timeout=150)
    node = status["rendezvous"]["members"][0]["node"]
    cluster.kube.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, content_type=MERGE)
    try:
        after = jobs.await_world("drained", 4, above=status["rendezvous"]["generation"], timeout=150)
        assert all(member["node"] != node for member in after["rendezvous"]["members"])
        wait_for(lambda: jobs.get("drained")["spec"]["replicas"] == 4, "the pool has seen the node go", 90)
    finally:
        cluster.kube.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}, content_type=MERGE)
    jobs.await_world("drained", 6, timeout=150)


def test_without_a_pool_the_reason_is_told_and_manual_jobs_are_left_alone(
    jobs: Jobs, operator: OperatorProcess
) -> None:
    spec = pooled()
    del spec["template"]["spec"]["containers"][0]["resources"]["limits"]
    jobs.create("elsewhere", spec)
    jobs.create("manual", light_spec(replicas=2))
    jobs.await_world("elsewhere", 1, timeout=150)
    jobs.await_world("manual", 2, timeout=150)
    reason = wait_for(lambda: jobs.status("elsewhere").get("scaling", {}).get("reason"), "it is told")
    assert (
        reason == "no pool has the resource that its pods request; the operator's pools are: default (nvidia.com/gpu)"
    )
    assert "scaling" not in jobs.status("manual")


@pytest.mark.long
def test_sizes_come_to_rest(jobs: Jobs) -> None:
    for name, shared in (("a", 0.95), ("b", 0.9), ("c", 0.6)):
        jobs.create(name, pooled(shared))
    wait_for(lambda: sum(size(jobs, name) for name in "abc") == 6, "they share all of it", 120)
    seen: list[tuple[float, tuple[int, ...]]] = []

    def is_still() -> bool:
        sizes = tuple(size(jobs, name) for name in "abc")
        if not seen or seen[-1][1] != sizes:
            seen.append((time.monotonic(), sizes))
        return time.monotonic() - seen[-1][0] > 25

    wait_for(is_still, "25 seconds without a change", 120)
    assert sum(seen[-1][1]) == 6
    assert min(seen[-1][1]) >= 1
