"""Pods on a node of the devcluster behave like a kubelet's, as observed through the API server."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster.pods_helper import Pods, condition, first, terminated, waiting_reason
from devcluster_fixture import make_claim
from elasticjob_devcluster import Cluster, NodeSpec, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TRAP = "trap 'echo asked; exit 7' TERM; echo up; while :; do sleep 0.05; done"
STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


def test_success(pods: Pods) -> None:
    ended = pods.run("p", "sh", "-c", "echo out; echo err >&2")
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    status = pods.status("p")
    assert status["phase"] == "Succeeded"
    assert (condition(status, "Ready"), condition(status, "Initialized")) == ("False", "True")
    assert status["podIP"].startswith("127.")
    assert sorted(pods.log("p").split()) == ["err", "out"]


def test_exit_code_and_termination_message(pods: Pods) -> None:
    ended = pods.run("p", "sh", "-c", "printf why > /dev/termination-log; exit 3")
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why")
    assert pods.status("p")["phase"] == "Failed"


def test_any_user_may_write_the_termination_message(pods: Pods) -> None:
    """As the kubelet lets it: a worker without root says there that it has succeeded."""
    ended = pods.run("p", "sh", "-c", "stat -c %a /dev/termination-log > /dev/termination-log")
    assert ended["message"] == "666\n"


def test_message_falls_back_to_the_log(pods: Pods) -> None:
    container = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    ended = pods.run("p", "sh", "-c", "echo first; echo last words; exit 1", container=container)
    assert ended["message"] == "first\nlast words\n"


def test_killed_by_a_signal(pods: Pods, cluster: Cluster, namespace: str) -> None:
    pods.create("p", "sh", "-c", "sleep 1000 & sleep 1000")
    pods.wait_phase("p", "Running")
    wait_until(lambda: len(cluster.pod_pids(namespace, "p")) >= 3, 20, "the shell has its children")
    pids = cluster.pod_pids(namespace, "p")
    cluster.kill_pod(namespace, "p")
    ended = terminated(pods.wait_phase("p", "Failed"))
    assert (ended["exitCode"], ended["signal"]) == (137, 9)
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_the_end_of_the_first_process_ends_the_container(pods: Pods, cluster: Cluster, namespace: str) -> None:
    pods.create("p", "sh", "-c", "setsid sleep 1000 & echo $!; read nothing < /dev/null; exec sleep 0.3")
    child = int(pods.wait_log("p", "\n").split()[0])
    pods.wait_phase("p", "Succeeded")
    assert not Path(f"/proc/{child}/exe").exists()
    assert cluster.pod_pids(namespace, "p") == []


def test_deletion_asks_first(pods: Pods) -> None:
    pods.create("p", "sh", "-c", TRAP, grace=30)
    pods.wait_log("p", "up")
    pods.delete("p")
    pods.wait_gone("p")


def test_deletion_kills_after_the_grace(pods: Pods, cluster: Cluster, namespace: str) -> None:
    pods.create("p", "sh", "-c", STUBBORN, grace=1)
    pods.wait_log("p", "up")
    pids = cluster.pod_pids(namespace, "p")
    pods.delete("p")
    pods.wait_log("p", "asked")
    pods.wait_gone("p")
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_force_deletion(pods: Pods, cluster: Cluster, namespace: str) -> None:
    pods.create("p", "sh", "-c", STUBBORN, grace=600)
    pods.wait_log("p", "up")
    pids = cluster.pod_pids(namespace, "p")
    pods.delete("p", gracePeriodSeconds=0)
    pods.wait_gone("p")
    wait_until(lambda: not [p for p in pids if Path(f"/proc/{p}/exe").exists()], 20, "its processes ended")


def test_restart_on_failure(pods: Pods, tmp_path: Path) -> None:
    script = f"echo try; if [ -e {tmp_path}/once ]; then exit 0; fi; touch {tmp_path}/once; exit 5"
    ended = pods.run("p", "sh", "-c", script, restartPolicy="OnFailure")
    status = pods.status("p")
    assert ended["exitCode"] == 0
    assert status["phase"] == "Succeeded"
    assert first(status)["restartCount"] == 1
    assert first(status)["lastState"]["terminated"]["exitCode"] == 5
    assert pods.log("p", previous=True) == "try\n"


def test_crash_loop(pods: Pods) -> None:
    pods.create("p", "sh", "-c", "exit 4", restartPolicy="Always")
    status = pods.wait_waiting("p", "CrashLoopBackOff")
    assert status["phase"] == "Running"
    assert first(status)["lastState"]["terminated"]["exitCode"] == 4
    assert condition(status, "Ready") == "False"


def test_init_containers_run_in_order(pods: Pods) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/opt/elasticjob/runtime"}], "image": "x"}
    init = [
        {"name": "one", "command": ["sh", "-c", "echo one > /opt/elasticjob/runtime/f"], **mount},
        {"name": "two", "command": ["sh", "-c", "echo two >> /opt/elasticjob/runtime/f"], **mount},
    ]
    volumes = [{"name": "v", "emptyDir": {}}]
    container = {"volumeMounts": mount["volumeMounts"]}
    pods.run("p", "cat", "/opt/elasticjob/runtime/f", container=container, initContainers=init, volumes=volumes)
    assert pods.log("p") == "one\ntwo\n"
    assert not Path("/opt/elasticjob/runtime").exists()


def test_failed_init_fails_the_pod(pods: Pods) -> None:
    init = [{"name": "one", "image": "x", "command": ["sh", "-c", "exit 9"]}]
    pods.create("p", "true", initContainers=init)
    status = pods.wait_phase("p", "Failed")
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
    assert waiting_reason(status) == "PodInitializing"


def test_a_native_sidecar_runs_beside_the_others_and_is_stopped_after_them(pods: Pods) -> None:
    script = "trap 'echo asked; exit 5' TERM; echo here; while :; do sleep 0.02; done"
    proxy = {"name": "proxy", "image": "x", "command": ["sh", "-c", script], "restartPolicy": "Always"}
    pods.create("p", "sh", "-c", "sleep 0.5; exit 3", initContainers=[proxy])
    if "restartPolicy" not in (pods.get("p") or {})["spec"]["initContainers"][0]:
        pytest.skip("the API server is older than native sidecars (1.29)")
    status = pods.wait_phase("p", "Failed")
    assert terminated(status)["exitCode"] == 3
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 5


def test_a_sidecar_outlives_the_first_container(pods: Pods) -> None:
    side = {"name": "side", "image": "x", "command": ["sleep", "600"]}
    main = {"name": "main", "image": "x", "command": ["sh", "-c", "exit 3"]}
    pods.create("p", containers=[main, side])
    status = pods.wait("p", lambda s: "terminated" in (first(s).get("state") or {}), "the first one has ended")
    assert status["phase"] == "Running"
    assert terminated(status)["exitCode"] == 3


def test_image_that_cannot_be_pulled(pods: Pods) -> None:
    pods.create("p", "true", container={"image": "registry.invalid/none:1"})
    status = pods.wait_waiting("p", "ImagePullBackOff")
    assert status["phase"] == "Pending"
    pods.delete("p")
    pods.wait_gone("p")


def test_command_that_does_not_exist(pods: Pods) -> None:
    ended = pods.run("p", "no-such-program")
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found in $PATH' in ended["message"]


def test_no_command_is_a_config_error(pods: Pods) -> None:
    pods.create("p")
    assert pods.wait_waiting("p", "CreateContainerConfigError")["phase"] == "Pending"


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        pytest.param(b"\x80\xff", "CreateContainerError", "string field contains invalid UTF-8", id="no text"),
        pytest.param(b"a\0b", "StartError", '"KEY": contains nul byte', id="NUL"),
    ],
)
def test_a_variable_that_no_program_can_have(
    pods: Pods, cluster: Cluster, namespace: str, value: bytes, reason: str, words: str
) -> None:
    secret = {"metadata": {"name": "s"}, "data": {"KEY": base64.b64encode(value).decode()}}
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    pods.create("p", "true", container={"envFrom": [{"secretRef": {"name": "s"}}]})

    def find(status: dict[str, Any]) -> dict[str, Any]:
        state = first(status).get("state") or {}
        found: dict[str, Any] = state.get("waiting") or state.get("terminated") or {}
        return found

    status = pods.wait("p", lambda s: find(s).get("reason") == reason, "it cannot start")
    assert words in find(status)["message"]


def test_environment(pods: Pods, cluster: Cluster, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    cluster.kube.request("POST", f"{base}/configmaps", {"metadata": {"name": "cm"}, "data": {"k": "from-map"}})
    secret = {"metadata": {"name": "s"}, "data": {"P": base64.b64encode(b"word").decode()}}
    cluster.kube.request("POST", f"{base}/secrets", secret)
    fields = {"NAME": "metadata.name", "IP": "status.podIP", "NODE": "spec.nodeName", "LABEL": "metadata.labels['app']"}
    env: list[dict[str, Any]] = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    env += [
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
        {"name": "BOTH", "value": "$(NAME)@$(NODE)"},
        {"name": "GPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}},
    ]
    env = [e for e in env if e["name"] != "GPUS"]  # the API server takes cpu and memory only
    env.append({"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}})
    container = {
        "env": env,
        "envFrom": [{"secretRef": {"name": "s"}}],
        "resources": {"limits": {"cpu": "250m", "nvidia.com/gpu": 1}},
    }
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    pods.run("p", "python", "-c", script, container=container)
    seen, pod = json.loads(pods.log("p")), pods.get("p")
    assert pod is not None
    node = pod["spec"]["nodeName"]
    wanted = {"NAME": "p", "IP": pod["status"]["podIP"], "NODE": node, "LABEL": "test", "MAP": "from-map"}
    wanted |= {"BOTH": f"p@{node}", "P": "word", "CPU": "250", "HOSTNAME": "p"}
    assert {k: seen.get(k) for k in wanted} == wanted
    assert seen["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "PYTEST_CURRENT_TEST" not in seen


def test_missing_config_map_then_there(pods: Pods, cluster: Cluster, namespace: str) -> None:
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]
    pods.create("p", "sh", "-c", "echo $K", container={"env": env})
    status = pods.wait_waiting("p", "CreateContainerConfigError")
    assert "late" in first(status)["state"]["waiting"]["message"]
    body = {"metadata": {"name": "late"}, "data": {"k": "v"}}
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    pods.wait_phase("p", "Succeeded")
    assert pods.log("p") == "v\n"


def test_projected_token_is_bound_to_the_pod(pods: Pods, cluster: Cluster, namespace: str) -> None:
    source = {"serviceAccountToken": {"audience": "elasticjob.dev", "path": "token", "expirationSeconds": 600}}
    label = {"fieldRef": {"fieldPath": "metadata.labels['app']"}}
    sources = [source, {"downwardAPI": {"items": [{"path": "app", **label}]}}]
    volumes = [{"name": "t", "projected": {"sources": sources}}]
    place = "/var/run/secrets/elasticjob.dev"
    container = {"volumeMounts": [{"name": "t", "mountPath": place, "readOnly": True}]}
    pods.run("p", "sh", "-c", f"cat {place}/token; echo; cat {place}/app", container=container, volumes=volumes)
    token, app = pods.log("p").split()
    assert app == "test"
    review = {"spec": {"token": token, "audiences": ["elasticjob.dev"]}}
    answer = cluster.kube.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert answer["authenticated"]
    assert answer["audiences"] == ["elasticjob.dev"]
    assert answer["user"]["username"] == f"system:serviceaccount:{namespace}:default"
    assert answer["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    other = {"spec": {"token": token, "audiences": ["another"]}}
    refused = cluster.kube.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", other)["status"]
    assert not refused.get("authenticated")


def test_volumes_appear_where_the_pod_says(pods: Pods, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("host")
    body = {"metadata": {"name": "cm"}, "data": {"a": "A", "b": "B"}}
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    volumes = [
        {"name": "cm", "configMap": {"name": "cm", "items": [{"key": "a", "path": "sub/a"}]}},
        {"name": "all", "configMap": {"name": "cm"}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
    ]
    mounts = [
        {"name": "cm", "mountPath": "/devcluster-test/config"},
        {"name": "all", "mountPath": "/devcluster-test/b.txt", "subPath": "b"},
        {"name": "host", "mountPath": "/srv/devcluster-test"},
    ]
    script = "cd /devcluster-test; cat config/sub/a b.txt /srv/devcluster-test/f; echo new > /srv/devcluster-test/g"
    pods.run("p", "sh", "-c", script, container={"volumeMounts": mounts}, volumes=volumes)
    assert pods.log("p") == "ABhost"
    assert (tmp_path / "g").read_text() == "new\n"
    assert not Path("/devcluster-test").exists()
    assert not Path("/srv/devcluster-test").exists()


def test_a_claim_is_the_folder_of_its_volume(pods: Pods, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("host")
    make_claim(cluster, namespace, "data", tmp_path)
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = [{"name": "v", "mountPath": "/srv/devcluster-test"}]
    script = "cat /srv/devcluster-test/f; echo new > /srv/devcluster-test/g"
    pods.run("p", "sh", "-c", script, container={"volumeMounts": mounts}, volumes=volumes)
    assert pods.log("p") == "host"
    assert (tmp_path / "g").read_text() == "new\n"


def test_readiness_follows_the_probe(pods: Pods, tmp_path: Path) -> None:
    probe = {"exec": {"command": ["test", "-e", str(tmp_path / "ready")]}, "periodSeconds": 1, "failureThreshold": 1}
    pods.create("p", "sleep", "1000", container={"readinessProbe": probe})
    assert condition(pods.wait_phase("p", "Running"), "Ready") == "False"
    (tmp_path / "ready").touch()
    pods.wait("p", lambda s: condition(s, "Ready") == "True", "p is ready")
    (tmp_path / "ready").unlink()
    pods.wait("p", lambda s: condition(s, "Ready") == "False", "p is not ready any more")


def test_http_probe_reaches_the_pods_own_address(pods: Pods) -> None:
    serve = "exec python -m http.server --bind $IP 8123"
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    ports = [{"name": "web", "containerPort": 8123}]
    probe = {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 1}
    for name in ("a", "b"):  # the same port twice: every pod has an address of its own
        pods.create(name, "sh", "-c", serve, container={"env": env, "ports": ports, "readinessProbe": probe})
    for name in ("a", "b"):
        pods.wait(name, lambda s: condition(s, "Ready") == "True", "ready")


def test_logs_through_the_api_server(pods: Pods, cluster: Cluster) -> None:
    pods.run("p", "sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done")
    path = f"{pods.path}/p/log"
    assert cluster.kube.raw("GET", f"{path}?tailLines=2") == b"line 4\nline 5\n"
    assert cluster.kube.raw("GET", f"{path}?limitBytes=8") == b"line 1\nl"
    stamped = cluster.kube.raw("GET", f"{path}?timestamps=true&tailLines=1").decode()
    assert stamped.split()[0].endswith("Z")
    assert stamped.endswith("line 5\n")


def test_following_a_log_ends_with_the_container(pods: Pods, cluster: Cluster) -> None:
    pods.create("p", "sh", "-c", "echo one; sleep 0.5; echo two")
    pods.wait_log("p", "one")
    assert cluster.kube.raw("GET", f"{pods.path}/p/log?follow=true") == b"one\ntwo\n"


def test_deadline_of_the_pod(pods: Pods) -> None:
    pods.create("p", "sleep", "1000", activeDeadlineSeconds=1)
    assert pods.wait_phase("p", "Failed")["reason"] == "DeadlineExceeded"


def test_a_real_job_controller_is_served(pods: Pods, cluster: Cluster, namespace: str) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x", "command": ["true"]}]}}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    body = {"metadata": {"name": "j"}, "spec": {"completions": 3, "parallelism": 3, "template": template}}
    cluster.kube.request("POST", path, body)

    def succeeded() -> bool:
        job = cluster.kube.get(f"{path}/j") or {}
        return bool((job.get("status") or {}).get("succeeded") == 3)

    wait_until(succeeded, 60, "three pods of the job succeed")


def test_forty_pods_at_once(pods: Pods, cluster: Cluster) -> None:
    for number in range(40):
        pods.create(f"p{number}", "true")

    def done() -> bool:
        items = cluster.kube.request("GET", pods.path)["items"]
        return [p["status"].get("phase") for p in items] == ["Succeeded"] * 40

    wait_until(done, 90, "forty pods succeed")


@pytest.mark.parametrize("mode", ["user-namespace", "rewrite"])
def test_volumes_without_root(pods: Pods, cluster: Cluster, mode: str) -> None:
    """A node that may not mount, or only in a user namespace, shows its pods the same files."""
    cluster.add_node(NodeSpec(mode, sandbox=mode))
    source = {"serviceAccountToken": {"audience": "elasticjob.dev", "path": "token"}}
    volumes = [{"name": "t", "projected": {"sources": [source]}}, {"name": "e", "emptyDir": {}}]
    mounts = [
        {"name": "t", "mountPath": "/var/run/secrets/elasticjob.dev"},
        {"name": "e", "mountPath": "/opt/elasticjob/runtime"},
    ]
    env = [{"name": "TOKEN_FILE", "value": "/var/run/secrets/elasticjob.dev/token"}]
    script = "wc -c < $TOKEN_FILE; echo kept > /opt/elasticjob/runtime/f; cat /opt/elasticjob/runtime/f"
    container = {"volumeMounts": mounts, "env": env}
    try:
        pods.run("p", "sh", "-c", script, container=container, volumes=volumes, nodeName=mode)
        size, kept = pods.log("p").split()
        assert int(size) > 100
        assert kept == "kept"
    finally:
        cluster.remove_node(mode)
    assert not Path("/opt/elasticjob/runtime").exists()
