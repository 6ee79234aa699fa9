"""Jobs that share a pool, through a real API server: three nodes with two devices each are six slots."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster_fixture import DEVICES
from elasticjob_devcluster import Cluster
from elasticjob_operator.api import names
from operator_fixture import MERGE, Jobs, OperatorProcess, install_crd, judge_log, light_spec, wait_for
from side_by_side import MAKERS, together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AT_ONCE = 3  # see `side_by_side`: each has an operator and seven agents
KINDS = itertools.cycle(("nvidia.com/gpu", *DEVICES))


class Pool(Jobs):
    """A namespace and its operator, with a pool of six devices of a kind that no other test uses."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        super().__init__(cluster, namespace)
        self.resource = next(KINDS)
        flags = [] if self.resource == "nvidia.com/gpu" else ["--pool", f"default={self.resource}"]
        self.operator = OperatorProcess(cluster, directory, "--namespace", namespace, "--stable-seconds", "1", *flags)

    def spec(self, shared: float = 0.95, **changes: Any) -> dict[str, Any]:
        """A job whose steps are divided among its pods to this extent, each with one device."""
        spec = light_spec("--step-seconds", "0.2", "--shared", str(shared), **changes)
        spec["scaling"] = {"mode": "Goodput"}
        spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 6, "gracefulShutdownTimeoutSeconds": 2}
        del spec["replicas"]
        container = spec["template"]["spec"]["containers"][0]
        container["resources"] = {"limits": {self.resource: "1"}, "requests": {"cpu": "10m"}}
        return spec


@contextlib.contextmanager
def make_pool(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Pool]:
    install_crd(cluster)
    pool = Pool(cluster, namespace, tmp_path)
    pool.operator.start()
    try:
        yield pool
    finally:
        pool.operator.stop()
        judge_log(pool.operator.log)


MAKERS.update(pool=make_pool)


@pytest.fixture
def pool(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Pool]:
    with make_pool(cluster, namespace, tmp_path) as pool:
        yield pool


def size(pool: Pool, name: str) -> int:
    return int(pool.status(name).get("readyReplicas") or 0)


@together
def test_one_job_has_the_pool_and_two_share_it(pool: Pool) -> None:
    pool.create("good", pool.spec(0.98))
    pool.await_world("good", 6, timeout=120)
    scaling = pool.status("good")["scaling"]
    assert scaling["pool"] == "default"
    assert scaling["size"] == scaling["wanted"] == 6
    assert scaling["expectedGainPercent"] > 100
    assert pool.get("good")["metadata"]["annotations"]["elasticjob.dev/pool-replicas"] == "6"

    pool.create("bad", pool.spec(0.3))
    wait_for(lambda: size(pool, "bad") >= 1 and size(pool, "good") + size(pool, "bad") == 6, "they share", 90)

    def is_settled() -> bool:
        return size(pool, "good") > size(pool, "bad") >= 1

    wait_for(is_settled, "who scales has more", 90)
    wait_for(lambda: "other jobs gain more" in pool.status("good")["scaling"]["reason"], "it is told why", 90)
    wait_for(lambda: len(pool.status("good")["scaling"]["speeds"]) >= 2, "its speeds are kept", 90)

    pool.operator.kill()
    pool.delete("bad")
    pool.operator.start()
    pool.await_world("good", 6, timeout=150)
    speeds = {one["size"] for one in pool.status("good")["scaling"]["speeds"]}
    assert 1 in speeds, "what was measured is not forgotten with the operator"


@together
def test_a_template_that_asks_for_more_takes_nothing_before_pods_have_it(pool: Pool) -> None:
    """Its pods are not replaced by that, and hold what they were created with."""
    other = light_spec("--step-seconds", "0.2", replicas=1)
    pool.create("other", other)
    pool.await_world("other", 1, timeout=120)
    pool.create("good", pool.spec(0.98))
    pool.await_world("good", 6, timeout=120)
    other["template"]["spec"]["containers"][0]["resources"] = {"limits": {pool.resource: "1000000"}}
    pool.patch("other", {"template": other["template"]})
    pool.create("second", pool.spec(0.3))
    wait_for(lambda: size(pool, "second") >= 1, "they share", 90)
    wait_for(lambda: size(pool, "good") + size(pool, "second") == 6, "all devices are used", 30)


@together
def test_pods_that_ask_for_nothing_leave_the_pool_to_the_jobs(pool: Pool) -> None:
    """One on each node, of as many containers as its author likes, of which only the first one ever runs."""
    runs = {"image": "a/b:1", "command": ["sleep", "600"]}
    spec = {"containers": [{"name": "c", **runs}], "initContainers": [{"name": f"i{n}", **runs} for n in range(300)]}
    path = f"/api/v1/namespaces/{pool.namespace}/pods"
    labels = {names.LABEL_APP: names.LABEL_APP_VALUE}
    for node in pool.kube.request("GET", "/api/v1/nodes")["items"]:
        name = node["metadata"]["name"]
        body = {"metadata": {"name": f"crowd-{name}", "labels": labels}, "spec": {**spec, "nodeName": name}}
        pool.kube.request("POST", path, body)
    pool.create("good", pool.spec(0.98))
    pool.await_world("good", 6, timeout=120)


@together
def test_a_user_who_scales_pins_the_job_until_it_is_released(pool: Pool) -> None:
    pool.create("mine", pool.spec())
    pool.await_world("mine", 6, timeout=150)
    pool.scale("mine", 2)
    pool.await_world("mine", 2, timeout=150)
    wait_for(lambda: pool.status("mine")["scaling"].get("pinned"), "it is told")
    assert "kubectl elasticjob scale mine auto" in pool.status("mine")["scaling"]["reason"]

    pool.create("other", pool.spec())
    pool.await_world("other", 4, timeout=150)
    assert pool.get("mine")["spec"]["replicas"] == 2

    pool.kube.request("PATCH", f"{pool.path}/other", {"spec": {"runPolicy": {"suspend": True}}}, content_type=MERGE)
    pool.await_condition("other", "Suspended")
    pool.patch("mine", {"replicas": None})
    pool.await_world("mine", 6, timeout=150)
    assert "pinned" not in pool.status("mine")["scaling"]


@together
def test_a_pooled_job_follows_its_bounds(pool: Pool) -> None:
    """The number in `spec.replicas` is the pool's, and no reason to refuse a change of the file."""
    pool.create("bounded", pool.spec())
    pool.await_world("bounded", 6, timeout=150)
    pool.patch("bounded", {"elasticPolicy": {"maxReplicas": 3}})
    pool.await_world("bounded", 3, timeout=150)
    wait_for(lambda: pool.get("bounded")["spec"]["replicas"] == 3, "the pool writes it")
    assert "pinned" not in pool.status("bounded")["scaling"]


@together
def test_a_job_that_joins_the_pool_is_not_pinned_by_the_default(pool: Pool) -> None:
    spec = pool.spec()
    pool.create("joins", {**spec, "scaling": {"mode": "Manual"}})
    pool.await_world("joins", 6, timeout=150)
    pool.patch("joins", {"scaling": {"mode": "Goodput"}})
    wait_for(lambda: pool.status("joins").get("scaling", {}).get("pool"), "it is in the pool", 90)
    assert "pinned" not in pool.status("joins")["scaling"]


def test_a_node_that_is_cordoned_is_no_capacity(pool: Pool, cluster: Cluster) -> None:
    pool.create("drained", pool.spec())
    status = pool.await_world("drained", 6, timeout=150)
    node = status["rendezvous"]["members"][0]["node"]
    cluster.kube.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, content_type=MERGE)
    try:
        after = pool.await_world("drained", 4, above=status["rendezvous"]["generation"], timeout=150)
        assert all(member["node"] != node for member in after["rendezvous"]["members"])
        wait_for(lambda: pool.get("drained")["spec"]["replicas"] == 4, "the pool has seen the node go", 90)
    finally:
        cluster.kube.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}, content_type=MERGE)
    pool.await_world("drained", 6, timeout=150)


@together
def test_without_a_pool_the_reason_is_told_and_manual_jobs_are_left_alone(pool: Pool) -> None:
    spec = pool.spec()
    del spec["template"]["spec"]["containers"][0]["resources"]["limits"]
    pool.create("elsewhere", spec)
    pool.create("manual", light_spec(replicas=2))
    pool.await_world("elsewhere", 1, timeout=150)
    pool.await_world("manual", 2, timeout=150)
    reason = wait_for(lambda: pool.status("elsewhere").get("scaling", {}).get("reason"), "it is told")
    known = f"the operator's pools are: default ({pool.resource})"
    assert reason == f"no pool has the resource that its pods request; {known}"
    assert "scaling" not in pool.status("manual")


@pytest.mark.long
def test_sizes_come_to_rest(pool: Pool) -> None:
    for name, shared in (("a", 0.95), ("b", 0.9), ("c", 0.6)):
        pool.create(name, pool.spec(shared))
    wait_for(lambda: sum(size(pool, name) for name in "abc") == 6, "they share all of it", 120)
    seen: list[tuple[float, tuple[int, ...]]] = []

    def is_still() -> bool:
        sizes = tuple(size(pool, name) for name in "abc")
        if not seen or seen[-1][1] != sizes:
            seen.append((time.monotonic(), sizes))
        return time.monotonic() - seen[-1][0] > 25

    wait_for(is_still, "25 seconds without a change", 120)
    assert sum(seen[-1][1]) == 6
    assert min(seen[-1][1]) >= 1
