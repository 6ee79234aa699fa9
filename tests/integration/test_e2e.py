"""The whole life cycle: images built and loaded into container nodes, the chart installed, jobs trained through changes
and faults, the chart uninstalled.

The operator runs in the chart's own pods, as a non-root user, with the chart's RBAC and TLS. One job uses the worker
image, another an image with only torch, into which the runtime is injected. Requires root and Debian packages
(`scripts/e2e.sh` installs them); if something is missing, the tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from chart_fixture import CHART, ROOT
from elasticjob_devcluster import Cluster, KubeError, NodeSpec
from elasticjob_devcluster.containerd import tools
from elasticjob_operator.cli.root import run
from integration.e2e_platform import (
    JOBS,
    PATIENCE,
    PODS,
    SYSTEM,
    Object,
    Platform,
    host_path,
    images,
    plain_job,
    ready_operators,
    submit,
)

pytestmark = [pytest.mark.container, pytest.mark.timeout(2400)]
VOLUMES_FROM = 36  # the minor version of Kubernetes whose API server and kubelet know images as volumes by themselves


def run_pod(platform: Platform, name: str, image: str, command: list[str]) -> str:
    """A pod by itself, as restricted as can be; its log, once it has ended well."""
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "c",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    platform.cluster.kube.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})
    ended = ("Succeeded", "Failed")
    platform.wait(lambda: platform.get(f"{PODS}/{name}")["status"].get("phase") in ended, f"{name} ends")
    log = platform.cluster.logs("default", name)
    assert platform.get(f"{PODS}/{name}")["status"]["phase"] == "Succeeded", log
    platform.cluster.kube.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    return log


def test_install(platform: Platform) -> None:
    """Helm itself waits until both replicas are ready: their certificate is made, their caches are full."""
    release = platform.helm.install(
        CHART, "elasticjob", {}, namespace=SYSTEM, create_namespace=True, wait="watcher", timeout=300
    )
    assert release["status"] == "deployed"
    pods = platform.get(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    assert len({p["spec"]["nodeName"] for p in pods}) == len(pods) == 2
    for pod in pods:
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        pid = platform.cluster.pod_pids(SYSTEM, pod["metadata"]["name"])[0]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        state = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert state["Uid"].split() == ["65532"] * 4
        assert int(state["CapEff"], 16) == 0
        assert state["NoNewPrivs"].strip() == "1"


def test_images_hold_what_they_should(platform: Platform) -> None:
    runtime = run_pod(platform, "runtime", images.reference("runtime"), ["/runtime/install", "/tmp/runtime"])
    assert runtime == ""
    packages = ("torch", "kopf", "elasticjob", "elasticjob_operator", "elasticjob_devcluster")
    look = f"from importlib.util import find_spec; print(*[n for n in {packages} if find_spec(n)])"
    expected = {"worker": ["torch", "elasticjob"], "torch": ["torch"], "operator": ["kopf", "elasticjob_operator"]}
    for name, found in expected.items():
        assert run_pod(platform, name, images.reference(name), ["python3", "-c", look]).split() == found


def test_the_doctor_is_content_in_the_worker_image(platform: Platform) -> None:
    text = run_pod(platform, "doctor", images.reference("worker"), ["elasticjob", "doctor"])
    assert text


def test_a_foreign_image_trains_is_scaled_loses_a_pod_and_is_drained(platform: Platform) -> None:
    cluster, job = platform.cluster, "plain"
    script = (ROOT / "tests/integration/programs/until_stopped.py").read_text()
    body = {"metadata": {"name": "script"}, "data": {"until_stopped.py": script}}
    cluster.kube.request("POST", "/api/v1/namespaces/default/configmaps", body)
    submit(platform, plain_job(platform, job, 2))
    platform.wait(platform.trains_at(job, 2), "two pods train", job)
    for pod in platform.pods(job):
        assert [c["image"] for c in pod["spec"]["initContainers"]] == [f"elasticjob/runtime:{images.VERSION}"]
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0

    scale = {"spec": {"replicas": 3}}
    merge = "application/merge-patch+json"
    cluster.kube.request("PATCH", f"{JOBS}/{job}/scale", scale, content_type=merge)
    platform.wait(platform.trains_at(job, 3), "three pods train", job)

    victim = f"{job}-worker-1"
    before = {p["metadata"]["uid"] for p in platform.pods(job)}
    others = {p["metadata"]["uid"] for p in platform.pods(job) if p["metadata"]["name"] != victim}
    generation = platform.generation(job)
    cluster.kill_pod("default", victim)
    platform.wait(lambda: {p["metadata"]["uid"] for p in platform.pods(job)} - before != set(), "a new pod comes", job)
    platform.wait(platform.trains_at(job, 3, above=generation), "three pods train again", job)
    assert others < {p["metadata"]["uid"] for p in platform.pods(job)}, "the others were not touched"

    node = platform.get(f"{PODS}/{job}-worker-0")["spec"]["nodeName"]
    other = next(n for n in ("node-0", "node-1") if n != node)
    moves = any(p["spec"].get("nodeName") == other for p in platform.pods(job))
    generation = platform.generation(job) if moves else 0
    cluster.drain(other, timeout=PATIENCE)
    places = {node, None}
    platform.wait(lambda: {p["spec"].get("nodeName") for p in platform.pods(job)} <= places, "the node is free", job)
    platform.wait(platform.trains_at(job, 3, above=generation), "three pods train on one node", job)
    cluster.uncordon(other)
    platform.wait(lambda: len(ready_operators(platform)) == 2, "the operator's evicted replica is back")

    (platform.shared / job / "stop").touch()
    platform.wait(lambda: platform.conditions(job).get("Complete") == "True", "the job completes", job)
    assert platform.status(job)["restarts"].get("user", 0) == 0, "nothing of this was the user's fault"


def test_nodes_mount_the_runtime_as_a_volume(platform: Platform) -> None:
    """`images.runtime.asVolume`: the same image of the user, without an init container."""
    cluster, job = platform.cluster, "mounted"
    minor = int(cluster.version.split(".")[1])
    if minor < VOLUMES_FROM:
        pytest.skip(f"images are volumes from Kubernetes 1.{VOLUMES_FROM}; this is {cluster.version}")
    values: Object = {"images": {"runtime": {"asVolume": True}}}
    platform.helm.upgrade(CHART, "elasticjob", values, wait="watcher", timeout=300)
    submit(platform, plain_job(platform, job, 1))
    platform.wait(platform.trains_at(job, 1), "a pod trains", job)
    for pod in platform.pods(job):
        assert "initContainers" not in pod["spec"]
        mounted = [v["image"]["reference"] for v in pod["spec"]["volumes"] if "image" in v]
        assert mounted == [f"elasticjob/runtime:{images.VERSION}"]
    (platform.shared / job / "stop").touch()
    platform.wait(lambda: platform.conditions(job).get("Complete") == "True", "the job completes", job)
    platform.helm.upgrade(CHART, "elasticjob", {}, wait="watcher", timeout=300)


@pytest.mark.parametrize("index", [1, 0], ids=["follower", "host"])
def test_torchs_own_rendezvous_finds_its_store_by_name(platform: Platform, index: int) -> None:
    """Backend c10d without an endpoint: the cluster's DNS leads to the first pod, or to its replacement."""
    name = f"named-{index}"
    job = plain_job(platform, name, 2)
    job["spec"]["rendezvous"] = {"backend": "c10d"}
    job["spec"]["elasticPolicy"] |= {"minReplicas": 2, "maxReplicas": 2}
    submit(platform, job)
    platform.wait(lambda: any(step["world"] == 2 for step in platform.steps(name)), "two pods train", name)
    platform.cluster.kill_pod("default", f"{name}-worker-{index}")
    killed = time.time()

    def trains_again() -> bool:
        # The survivor's steps end with the pod; the first step of an attempt is step 0.
        return any(s["t"] > killed and s["world"] == 2 and s["step"] == 0 for s in platform.steps(name))

    platform.wait(trains_again, "two pods train again", name)
    (platform.shared / name / "stop").touch()
    platform.wait(lambda: platform.conditions(name).get("Complete") == "True", "the job completes", name)


def test_a_trainer_that_crashes_beside_a_sidecar_is_replaced(platform: Platform) -> None:
    """To a real kubelet such a pod is Running; to us its trainer has failed. The job ends though sidecars run on."""
    cluster, name = platform.cluster, "beside"
    job = plain_job(platform, name, 1)
    proxy = {"name": "proxy", "image": images.reference("torch"), "imagePullPolicy": "Never"}
    job["spec"]["template"]["spec"]["containers"].append({**proxy, "command": ["sleep", "3600"]})
    submit(platform, job)
    platform.wait(platform.trains_at(name, 1), "one pod trains", name)
    (pod,) = platform.pods(name)
    generation = platform.generation(name)
    for pid in cluster.pod_pids("default", pod["metadata"]["name"]):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if b"until_stopped.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    platform.wait(platform.trains_at(name, 1, above=generation), "another pod trains", name)
    assert platform.status(name)["lastFailure"]["exitCode"] == 137
    (platform.shared / name / "stop").touch()
    platform.wait(lambda: platform.conditions(name).get("Complete") == "True", "the job completes", name)
    platform.wait(lambda: not platform.pods(name), "the sidecar is ended with the job", name)


def test_the_example_learns_in_the_worker_image_while_it_is_scaled(platform: Platform) -> None:
    job: Object = yaml.safe_load((ROOT / "manifests/examples/digits.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [{**host_path(platform.shared / "digits"), "name": pod["volumes"][0]["name"]}]
    pod["containers"][0]["imagePullPolicy"] = "Never"
    epochs = pod["containers"][0]["command"].index("--epochs=40")
    pod["containers"][0]["command"][epochs] = "--epochs=8"
    submit(platform, job)
    platform.wait(lambda: platform.world("digits") == 2, "two pods are in the world", "digits")
    assert [len(p["spec"].get("initContainers") or ()) for p in platform.pods("digits")] == [0, 0]
    scale = {"spec": {"replicas": 3}}
    merge = "application/merge-patch+json"
    platform.cluster.kube.request("PATCH", f"{JOBS}/digits/scale", scale, content_type=merge)

    def ended() -> bool:
        return any(platform.conditions("digits").get(c) == "True" for c in ("Complete", "Failed"))

    platform.wait(ended, "the example ends", "digits", seconds=600)
    assert platform.conditions("digits").get("Complete") == "True", platform.explain("digits")


STEPS_FOR_EVER = """
import time

import elasticjob
import version

with elasticjob.init("gloo") as world:
    print("runs", version.TEXT, flush=True)
    step = 0
    while True:
        step += 1
        elasticjob.report(step=step)
        world.barrier()
        time.sleep(0.1)
"""


def test_kubelets_bring_new_code_to_pods_that_run(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS_FOR_EVER)
    target = ["-n", "default", "--kubeconfig", str(platform.cluster.kubeconfig)]
    size = ["--replicas", "2", "--min", "2", "--max", "2"]

    def in_force(number: int) -> bool:
        code = platform.status("hot").get("code") or {}
        return code.get("revision") == number and bool(code.get("proven"))

    (tmp_path / "version.py").write_text("TEXT = 'revision 0'\n")
    assert run(["submit", str(tmp_path), "--name", "hot", "--image", images.reference("worker"), *size, *target]) == 0
    platform.wait(lambda: bool((platform.status("hot").get("progress") or {}).get("step")), "it trains", "hot")
    pods = {pod["metadata"]["uid"] for pod in platform.pods("hot")}
    seconds = []
    for number in (1, 2, 3):
        (tmp_path / "version.py").write_text(f"TEXT = 'revision {number}'\n")
        began = time.monotonic()
        assert run(["update", "hot", "--code", str(tmp_path), *target]) == 0
        platform.wait(lambda n=number: in_force(n), f"revision {number} is in force", "hot")  # type: ignore[misc]
        seconds.append(round(time.monotonic() - began, 1))
        logs = [platform.cluster.logs("default", pod["metadata"]["name"]) for pod in platform.pods("hot")]
        assert all(f"runs revision {number}" in log for log in logs)
    assert {pod["metadata"]["uid"] for pod in platform.pods("hot")} == pods
    print(f"measured seconds until an update was in force: {seconds}")
    platform.cluster.kube.request("DELETE", f"{JOBS}/hot")
    platform.wait(lambda: not platform.pods("hot"), "its pods are gone", "hot")


def test_metrics_are_served(platform: Platform) -> None:
    pod = ready_operators(platform)[0]
    text = platform.cluster.kube.raw("GET", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics").decode()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert found['elasticjob_hub_places_limit{stage="agents"}'] > 0
    assert found["elasticjob_event_loop_lag_seconds_count"] > 0
    assert any(name.startswith("elasticjob_api_requests_total{") and value for name, value in found.items())
    assert {"elasticjob_leader", "elasticjob_hub_connections", "elasticjob_reconcile_errors_total"} <= found.keys()


def test_uninstall_leaves_nothing(platform: Platform) -> None:
    kube = platform.cluster.kube
    for job in platform.get(JOBS)["items"]:
        kube.request("DELETE", f"{JOBS}/{job['metadata']['name']}")
    platform.wait(lambda: not platform.get(PODS)["items"], "the pods of deleted jobs are gone")
    platform.helm.uninstall("elasticjob", wait="watcher", timeout=120)
    for plural in ("elasticjobs", "elasticjobtemplates"):
        kube.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.elasticjob.dev")
    kube.request("DELETE", f"/api/v1/namespaces/{SYSTEM}")
    kube.request("DELETE", "/api/v1/namespaces/default/configmaps/script")
    platform.wait(lambda: kube.get(f"/api/v1/namespaces/{SYSTEM}") is None, "the namespace is gone")
    platform.wait(lambda: leftovers(platform) == [], "nothing is left")


def leftovers(platform: Platform) -> list[str]:
    """Everything in the cluster whose name or labels speak of us, whatever its kind."""
    kube, found = platform.cluster.kube, []
    groups = [("/api/v1", kube.request("GET", "/api/v1"))]
    for group in kube.request("GET", "/apis")["groups"]:
        root = f"/apis/{group['preferredVersion']['groupVersion']}"
        with contextlib.suppress(KubeError):
            groups.append((root, kube.request("GET", root)))
    for root, listing in groups:
        for resource in listing["resources"]:
            if "list" not in resource["verbs"] or resource["name"] == "events":
                continue
            with contextlib.suppress(KubeError):
                for item in kube.request("GET", f"{root}/{resource['name']}").get("items") or ():
                    text = json.dumps([item["metadata"]["name"], item["metadata"].get("labels") or {}])
                    if "elasticjob" in text:
                        found.append(f"{resource['name']}/{item['metadata']['name']}")
    return found


def test_a_cluster_with_container_nodes_leaves_nothing_on_the_machine() -> None:
    if why := tools.why_unavailable():
        pytest.skip(why)
    cluster = Cluster.start([NodeSpec("node-0", runtime="containerd")])
    directory = cluster.directory
    node = cluster.kube.request("GET", "/api/v1/nodes/node-0")
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    gateway = f"{address.rpartition('.')[0]}.1"
    cluster.stop()
    assert not directory.exists()
    assert not list(tools.CGROUPS.glob(f"*/ejdc-{cluster.id}*"))
    assert str(directory) not in Path("/proc/self/mounts").read_text()
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True, timeout=10).stdout
    assert not [line for line in links.splitlines() if f" {gateway}/" in line]
