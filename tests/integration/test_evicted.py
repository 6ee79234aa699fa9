"""Pods that their node puts out again and again: the job makes few new ones, and heals at once when it is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import light_nodes, manifests
from chaos.manifest_judge import find_most, most_pods_of_evicted
from elasticjob_devcluster import Cluster, KubeError, NodeSpec, Tuning
from elasticjob_devcluster.api import drain
from operator_fixture import MERGE, Jobs, OperatorProcess, install_crd, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LIVED_SECONDS = 1.5
LOW = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 1Gi."


class Evictor:
    """Says of pods what a kubelet says that needs its disk for itself."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        self.jobs, self.name = jobs, name
        self.made: dict[str, float] = {}  # when each pod was first seen, by UID
        self.began: dict[str, float] = {}
        self.evicted: dict[str, float] = {}

    def look(self, *, is_evicting: bool = True) -> None:
        for pod in self.jobs.pods(self.name):
            uid, now = pod["metadata"]["uid"], time.monotonic()
            self.made.setdefault(uid, now)
            if pod.get("status", {}).get("phase") != "Running" or uid in self.evicted:
                continue
            if is_evicting and now - self.began.setdefault(uid, now) >= LIVED_SECONDS:
                self.evicted[uid] = now
                path = f"/api/v1/namespaces/{self.jobs.namespace}/pods/{pod['metadata']['name']}/status"
                status = {"phase": "Failed", "reason": "Evicted", "message": LOW}
                body = {"metadata": {"uid": uid}, "status": status}
                self.jobs.kube.request("PATCH", path, body, content_type=MERGE)


@together
def test_pods_that_are_evicted_soon_after_their_start_are_few(jobs: Jobs) -> None:
    """The first pods of a job, one in the place of each, and then six a minute."""
    size = 3
    jobs.create("evicted", light_spec(replicas=size))
    evictor, began = Evictor(jobs, "evicted"), time.monotonic()
    while time.monotonic() - began < 60:
        evictor.look()
        time.sleep(0.1)
    times = sorted(evictor.made.values())
    print([round(at - began, 1) for at in times])
    first = min(evictor.evicted.values())
    assert times[size] - first < 3, "the first loss is made good at once"
    assert len(times) <= most_pods_of_evicted(size), [round(at - began, 1) for at in times]
    told = jobs.condition("evicted", "Degraded")
    assert told["reason"] == "BackOff" and "ephemeral-storage" in told["message"]
    assert jobs.status("evicted")["restarts"].get("user", 0) == 0

    def heal() -> bool:
        evictor.look(is_evicting=False)
        return jobs.status("evicted").get("readyReplicas") == size

    wait_for(heal, "the job heals by itself", 90)


@together
def test_an_autoscaler_that_changes_the_size_makes_no_more_of_them(jobs: Jobs) -> None:
    """A size mends nothing: each change of it was a reason to try all pods again."""
    jobs.create("scaled", light_spec(replicas=2))
    evictor, began, changed = Evictor(jobs, "scaled"), time.monotonic(), 0
    while (now := time.monotonic()) - began < 40:
        evictor.look()
        if now - began > 5 * (changed + 1):
            changed += 1
            jobs.scale("scaled", 2 + changed % 2)
        time.sleep(0.1)
    times = [round(at - began, 1) for at in evictor.made.values()]
    assert changed >= 6
    assert len(times) <= most_pods_of_evicted(3), sorted(times)
    assert jobs.condition("scaled", "Degraded")["reason"] == "BackOff"


@together
def test_a_job_whose_pods_somebody_evicts_says_that_none_has_failed(jobs: Jobs) -> None:
    """As `kubectl drain` and a descheduler ask for it. Its disruption budget lets one go at a time."""
    jobs.create("asked", light_spec("--leave-on-term", replicas=2))
    generation = 0
    for _ in range(2):
        generation = jobs.await_world("asked", 2, above=generation)["rendezvous"]["generation"]
        name = min(pod["metadata"]["name"] for pod in jobs.pods("asked"))
        path = f"/api/v1/namespaces/{jobs.namespace}/pods/{name}/eviction"
        wait_for(lambda path=path: evict(jobs, path), "the budget counts the pods, and lets one go")  # type: ignore[misc]

    def look() -> str:
        told = jobs.condition("asked", "Degraded")
        return str(told["message"]) if told.get("reason") == "BackOff" else ""

    assert "no pod has failed: they were evicted or deleted" in wait_for(look, "it backs off")
    assert jobs.status("asked")["restarts"].get("user", 0) == 0


def evict(jobs: Jobs, path: str) -> bool:
    kind = {"apiVersion": drain.eviction_version(jobs.kube), "kind": "Eviction"}
    metadata = {"name": path.split("/")[-2], "namespace": jobs.namespace}
    try:
        jobs.kube.request("POST", path, {**kind, "metadata": metadata})
    except KubeError as error:
        if error.status != 429:
            raise
        return False
    return True


SIZES = (2, 4, 16, 50)
MOST_REPEATED = {"refused": 6, "evicted": 10}  # pods in a minute, beside the first ones, of a job of any size
MOST_REQUESTS = {"refused": 50, "evicted": 90}  # beside three for each of the first pods


@together
def test_a_large_job_repeats_as_few_pods_as_a_small_one(
    cluster_factory: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Nodes that refuse all pods, or evict them after seconds. What the operator asks for is in the audit log."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(manifests.POLICY))
    audit = (f"--audit-policy-file={policy}",)
    never = ("--node-monitor-grace-period=24h",)  # these nodes renew no Lease
    cluster = cluster_factory(
        nodes=(), tuning=Tuning(audit=True, apiserver_flags=audit, controller_manager_flags=never)
    )
    install_crd(cluster)
    labels = ({light_nodes.REFUSES: "UnexpectedAdmissionError", "kind": "refused"}, {"kind": "evicted"})
    specs = [NodeSpec(f"{one['kind']}-{i}", cpu=4000, pods=4000, labels=one) for one in labels for i in range(3)]
    operator = OperatorProcess(cluster, tmp_path, "--stable-seconds", "1")
    with light_nodes.LightNodes(cluster, specs).running():
        cluster.wait_nodes_ready([spec.name for spec in specs])
        operator.start()
        try:
            for size in SIZES:
                for kind in MOST_REPEATED:
                    cluster.make_namespace(f"{kind}-{size}")
                    bounds = {"minReplicas": 1, "maxReplicas": size}
                    spec = light_spec(replicas=size, elasticPolicy=bounds)
                    pod = spec["template"]["spec"]
                    pod["nodeSelector"] = {"kind": kind}
                    trainer = pod["containers"][0]
                    trainer |= {"image": f"{light_nodes.HERE}train:1", "command": ["fallocate", "-l", "2Ti", "/data"]}
                    Jobs(cluster, f"{kind}-{size}").create("job", spec)
            time.sleep(60)  # what is counted is what happens meanwhile
            told = {kind: Jobs(cluster, f"{kind}-50").condition("job", "Degraded") for kind in MOST_REPEATED}
        finally:
            operator.stop()
    requests = manifests.read_requests(cluster)
    counts = {
        (kind, size): (find_most(requests.pods[f"{kind}-{size}"]) - size, find_most(requests.asked[f"{kind}-{size}"]))
        for kind in MOST_REPEATED
        for size in SIZES
    }
    for (kind, size), (repeated, asked) in counts.items():
        print(f"{kind}, {size} pods: {repeated} made beside the first ones and {asked} requests in a minute")
        print(requests.what[f"{kind}-{size}"].most_common(6))
    for (kind, size), (repeated, asked) in counts.items():
        assert 0 < repeated <= MOST_REPEATED[kind], (kind, size)
        assert asked <= MOST_REQUESTS[kind] + 3 * size, (kind, size)
    assert {one["reason"] for one in told.values()} == {"BackOff"}
    assert "UnexpectedAdmissionError" in told["refused"]["message"]
    assert "ephemeral-storage" in told["evicted"]["message"]
