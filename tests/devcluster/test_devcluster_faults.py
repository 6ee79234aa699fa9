"""Faults: nodes that die, come back, are cut off or drained; and a cluster that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.pods_helper import Pods, first, terminated
from elasticjob_devcluster import Cluster, ClusterError, DrainTimeout, NodeSpec, wait_until
from elasticjob_devcluster.system import processes
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CLI = [sys.executable, "-m", "elasticjob_devcluster"]


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node that the test may break."""
    name = "node-2"
    yield name
    cluster.heal(name)
    cluster.uncordon(name)
    cluster.start_node(name)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if not processes.is_zombie(pid)]


def test_power_loss_and_return(pods: Pods, cluster: Cluster, namespace: str, node: str) -> None:
    pods.create("never", "sleep", "1000", nodeName=node)
    pods.create("always", "sh", "-c", "echo began; sleep 1000", nodeName=node, restartPolicy="Always")
    pods.wait_phase("never", "Running")
    pods.wait_log("always", "began")
    pids = cluster.pod_pids(namespace, "never") + cluster.pod_pids(namespace, "always")
    cluster.kill_node(node)
    assert alive(pids) == []
    assert pods.status("never")["phase"] == "Running", "a node without power reports nothing"
    wait_until(lambda: not cluster.node_ready(node), 60, f"{node} is NotReady")
    cluster.start_node(node)
    ended = terminated(pods.wait_phase("never", "Failed"))
    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown")
    status = pods.wait("always", lambda s: "running" in first(s)["state"], "always runs again")
    assert first(status)["restartCount"] == 1


def test_the_agent_dies_and_the_pods_go_on(pods: Pods, cluster: Cluster, namespace: str, node: str) -> None:
    pods.create("stays", "sh", "-c", "echo began; sleep 1000", nodeName=node)
    pods.create("ends", "sh", "-c", "echo began; sleep 1; exit 3", nodeName=node)
    pods.wait_log("stays", "began")
    pods.wait_log("ends", "began")
    pids = cluster.pod_pids(namespace, "stays")
    ending = cluster.pod_pids(namespace, "ends")
    cluster.stop_agent(node)
    assert alive(pids) == pids
    wait_until(lambda: not alive(ending), 20, "the other pod ended while nobody looked")
    cluster.start_node(node)
    assert terminated(pods.wait_phase("ends", "Failed"))["exitCode"] == 3
    assert cluster.pod_pids(namespace, "stays") == pids
    assert first(pods.status("stays"))["restartCount"] == 0
    pods.delete("stays")
    pods.wait_gone("stays")
    assert alive(pids) == []


def test_a_cut_node_is_given_up_and_comes_back(pods: Pods, cluster: Cluster, namespace: str, node: str) -> None:
    pods.create("p", "sh", "-c", "echo began; sleep 1000", nodeName=node)
    pods.wait_log("p", "began")
    pids = cluster.pod_pids(namespace, "p")
    cluster.cut(node)
    wait_until(lambda: not cluster.node_ready(node), 60, f"{node} is NotReady")
    assert alive(pids) == pids
    cluster.heal(node)
    cluster.wait_nodes_ready([node])
    assert cluster.pod_pids(namespace, "p") == pids


def test_drain_honours_a_budget(pods: Pods, cluster: Cluster, namespace: str, node: str) -> None:
    resources = cluster.kube.request("GET", "/apis/policy")["versions"]
    version = "v1" if any(v["version"] == "v1" for v in resources) else "v1beta1"
    path = f"/apis/policy/{version}/namespaces/{namespace}/poddisruptionbudgets"
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
    cluster.kube.request("POST", path, budget)
    pods.create("free", "sleep", "1000", nodeName=node)
    pods.create("guarded", "sleep", "1000", nodeName=node, labels={"app": "guarded"})
    pods.wait_phase("guarded", "Running")

    def counted() -> bool:
        status = cluster.kube.request("GET", f"{path}/b").get("status") or {}
        return bool(status.get("currentHealthy") == 1)

    wait_until(counted, 30, "the budget sees its pod")
    with pytest.raises(DrainTimeout, match=f"{namespace}/guarded.*budget"):
        cluster.drain(node, timeout=3)
    pods.wait_gone("free")  # its eviction was granted, though its end may take longer than the drain
    assert pods.status("guarded")["phase"] == "Running"
    cluster.kube.request("DELETE", f"{path}/b")
    cluster.drain(node, timeout=30)
    assert pods.get("guarded") is None
    assert (cluster.kube.get(f"/api/v1/nodes/{node}") or {})["spec"]["unschedulable"]


def test_taints_come_and_go(cluster: Cluster, node: str) -> None:
    cluster.taint(node, "test.dev/spot", "yes", "NoSchedule")
    taint = {"key": "test.dev/spot", "value": "yes", "effect": "NoSchedule"}
    assert taint in cluster.kube.request("GET", f"/api/v1/nodes/{node}")["spec"]["taints"]
    cluster.taint(node, "test.dev/spot", effect="NoSchedule", remove=True)
    taints = cluster.kube.request("GET", f"/api/v1/nodes/{node}")["spec"].get("taints") or []
    assert taint not in taints


def test_gpus_are_scheduled(pods: Pods, cluster: Cluster) -> None:
    cluster.add_node(NodeSpec("extra", gpus=8, extended={"example.com/part": 1}))
    limits = {"nvidia.com/gpu": 5, "example.com/part": 1}
    pods.create("p", "true", container={"resources": {"limits": limits}})
    pods.wait_phase("p", "Succeeded")
    assert (pods.get("p") or {})["spec"]["nodeName"] == "extra"
    cluster.remove_node("extra")
    assert cluster.kube.get("/api/v1/nodes/extra") is None


def test_a_paused_pod_stands_still(pods: Pods, cluster: Cluster, namespace: str) -> None:
    pods.create("p", "sh", "-c", "echo began; sleep 1; echo woke; exec sleep 1000")
    pods.wait_log("p", "began")
    cluster.pause_pod(namespace, "p")

    def states() -> set[str]:
        pids = cluster.pod_pids(namespace, "p")
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids}

    wait_until(lambda: states() == {"T"}, 30, "every process of the pod has stopped")
    cluster.resume_pod(namespace, "p")
    pods.wait_log("p", "woke")


def test_the_api_server_restarts(pods: Pods, cluster: Cluster) -> None:
    pods.create("before", "sh", "-c", "echo began; sleep 1000")
    pods.wait_log("before", "began")
    cluster.restart_apiserver()
    cluster.wait_nodes_ready(["node-0", "node-1", "node-2"])
    pods.create("after", "true")
    pods.wait_phase("after", "Succeeded")
    assert first(pods.status("before"))["restartCount"] == 0


def test_unknown_node_is_a_clear_error(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="no node 'nope' in this cluster: it has node-0"):
        cluster.kill_node("nope")


def run_cli(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [*CLI, "--dir", str(directory), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def leftovers(identity: str) -> list[object]:
    """Processes and files of a cluster."""
    shm = [p for p in Path("/dev/shm").iterdir() if identity in p.name]
    return [*alive(processes.find_marked(processes.MARK_CLUSTER, identity)), *shm]


@together
def test_up_and_down_leave_nothing(cluster: Cluster, tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    started = run_cli(directory, "up", "--nodes", "1", "--resource", "example.com/part=3")
    assert started.returncode == 0, started.stderr
    mine = Cluster.attach(directory)
    try:
        capacity = (mine.kube.get("/api/v1/nodes/node-0") or {})["status"]["capacity"]
        assert (capacity["nvidia.com/gpu"], capacity["example.com/part"]) == ("2", "3")
        assert "node-0                    Ready" in run_cli(directory, "status").stdout
        again = run_cli(directory, "up")
        assert (again.returncode, "runs in" in again.stderr) == (1, True)
        assert leftovers(mine.id)
        mine.make_namespace("own")
        Pods(mine, "own").run("p", "true")  # two clusters at once: each has a scheduler of its own
    finally:
        mine.close()
        stopped = run_cli(directory, "down")
    assert stopped.returncode == 0, stopped.stderr
    assert leftovers(mine.id) == []
    assert not directory.exists()
    late = run_cli(directory, "status")
    assert "no devcluster runs in" in late.stderr
    assert "Traceback" not in late.stderr
    assert cluster.node_ready("node-0"), "the other cluster on this machine is not touched"


OWNER = """
import sys, time
from pathlib import Path
from elasticjob_devcluster import Cluster, NodeSpec
cluster = Cluster.start(nodes=[NodeSpec("n")], directory=Path(sys.argv[1]), wait=False)
print(cluster.id, flush=True)
time.sleep(1000)
"""


@together
def test_a_cluster_ends_with_its_owner(cluster: Cluster, tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    argv = [sys.executable, "-c", OWNER, str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        try:
            assert owner.stdout is not None
            identity = owner.stdout.readline().strip()
            assert identity
            assert leftovers(identity)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)
    wait_until(lambda: not leftovers(identity) and not directory.exists(), 30, "nothing is left")


@together
def test_a_killed_supervisor_leaves_nothing(cluster_factory: object, tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    mine = Cluster.start(nodes=[NodeSpec("n")], directory=directory)
    path = f"{mine.kube.server}"
    assert path.startswith("https://127.0.0.1:")
    body = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "nodeName": "n",
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "x", "command": ["sh", "-c", "setsid sleep 1000 & sleep 1000"]}],
        },
    }

    def created() -> bool:
        with contextlib.suppress(Exception):
            mine.kube.request("POST", "/api/v1/namespaces/default/pods", body)
        return bool(mine.kube.get("/api/v1/namespaces/default/pods/p"))

    wait_until(created, 30, "the pod is taken")
    wait_until(lambda: len(mine.pod_pids("default", "p")) == 3, 30, "the pod runs")
    pids = mine.pod_pids("default", "p")
    os.kill(mine.status()["pid"], signal.SIGKILL)
    wait_until(lambda: not leftovers(mine.id) and not alive(pids) and not directory.exists(), 30, "nothing is left")
    mine.stop()
