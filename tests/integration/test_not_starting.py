"""Jobs that do not start, because of an object of somebody else: what their conditions say, and how they recover."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import MERGE, Jobs, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OS = "kubernetes.io/os"


def await_told(jobs: Jobs, name: str, reason: str, timeout: float = 60.0) -> str:
    """The message of the condition `Degraded`, once it has this reason."""

    def look() -> str | None:
        found = jobs.condition(name, "Degraded")
        return str(found["message"]) if (found.get("status"), found.get("reason")) == ("True", reason) else None

    try:
        return wait_for(look, f"{name} is {reason}", timeout)
    except AssertionError:
        raise AssertionError(f"{name} never said {reason}: {jobs.status(name)['conditions']}") from None


def await_placed(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    """Both pods of a job, once they have nodes."""

    def look() -> list[dict[str, Any]] | None:
        pods = jobs.pods(name)
        return pods if len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods) else None

    return wait_for(look, "both pods have nodes")


def tell_of(
    jobs: Jobs, pod: dict[str, Any], reason: str, message: str, *, kind: str = "Warning", second: int = 0
) -> None:
    """What the kubelet would write: the nodes of the devcluster write no events."""
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": jobs.namespace, "uid": pod["metadata"]["uid"]}
    body = {
        "metadata": {"generateName": "told-"},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2030-01-01T00:00:{second:02}Z",
    }
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/events", body)


def spec_with_config_map(**changes: Any) -> dict[str, Any]:
    spec = light_spec(**changes)
    pod = spec["template"]["spec"]
    pod["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "settings", "mountPath": "/settings"}]
    return spec


@together
def test_a_volume_that_cannot_be_mounted_is_told_with_the_kubelets_words(jobs: Jobs) -> None:
    jobs.create("mounts", spec_with_config_map())
    first, second = sorted(await_placed(jobs, "mounts"), key=lambda pod: str(pod["metadata"]["name"]))
    words = 'MountVolume.SetUp failed: configmap "settings" not found'
    tell_of(jobs, first, "FailedMount", words)
    assert await_told(jobs, "mounts", "PodNotStarting") == f"mounts-worker-0: FailedMount: {words}"
    tell_of(jobs, second, "FailedMount", words)
    maps = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
    jobs.kube.request("POST", maps, {"metadata": {"name": "settings"}, "data": {"a": "b"}})
    jobs.await_world("mounts", 2)
    wait_for(lambda: jobs.condition("mounts", "Degraded")["status"] == "False", "nothing is told any more")


@together
def test_what_a_pod_has_got_over_is_not_told(jobs: Jobs) -> None:
    """It waited for a node and for a volume, and now pulls a large image."""
    jobs.create("pulls", spec_with_config_map())
    first, _ = sorted(await_placed(jobs, "pulls"), key=lambda pod: str(pod["metadata"]["name"]))
    tell_of(jobs, first, "FailedMount", "failed to sync configmap cache: timed out waiting for the condition")
    tell_of(jobs, first, "FailedScheduling", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", second=1)
    tell_of(jobs, first, "Pulling", 'Pulling image "pytorch"', kind="Normal", second=2)
    told = await_told(jobs, "pulls", "PodNotStarting", 90)
    assert told == 'pulls-worker-0: Pulling: Pulling image "pytorch"'


@together
def test_a_secret_for_variables_is_named_and_may_come_later(jobs: Jobs) -> None:
    spec = light_spec()
    spec["template"]["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "wandb-api-key"}}]
    jobs.create("tracked", spec)
    assert 'secret "wandb-api-key" not found' in await_told(jobs, "tracked", "CreateContainerConfigError")
    secret = {"metadata": {"name": "wandb-api-key"}, "stringData": {"KEY": "x"}}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/secrets", secret)
    assert not jobs.await_world("tracked", 2)["restarts"].get("total")
    wait_for(lambda: jobs.condition("tracked", "Degraded")["status"] == "False", "nothing is told any more")


@together
def test_a_secret_for_variables_that_is_no_text_is_named(jobs: Jobs) -> None:
    """The kubelet names neither the variable nor the Secret."""
    secrets = f"/api/v1/namespaces/{jobs.namespace}/secrets"
    for name, value in (("wandb-api-key", b"key"), ("tls", b"\x30\x82\xff")):
        data = {"KEY": base64.b64encode(value).decode()}
        jobs.kube.request("POST", secrets, {"metadata": {"name": name}, "data": data})
    spec = light_spec()
    trainer = spec["template"]["spec"]["containers"][0]
    trainer["envFrom"] = [{"secretRef": {"name": "wandb-api-key"}}]
    trainer["env"] = [{"name": "CERT", "valueFrom": {"secretKeyRef": {"name": "tls", "key": "KEY"}}}]
    jobs.create("binary", spec)
    told = await_told(jobs, "binary", "CreateContainerError")
    assert "invalid UTF-8" in told, "the kubelet's words"
    assert "Secret wandb-api-key, Secret tls" in told, "where to look"
    assert "base64" in told, "what to do"
    text = {"data": {"KEY": base64.b64encode(b"MIL/").decode()}}
    jobs.kube.request("PATCH", f"{secrets}/tls", text, content_type=MERGE)
    assert not jobs.await_world("binary", 2)["restarts"].get("total")
    wait_for(lambda: jobs.condition("binary", "Degraded")["status"] == "False", "nothing is told any more")


@together
def test_a_variable_with_a_nul_byte_is_told_with_the_remedy(jobs: Jobs) -> None:
    settings = {"metadata": {"name": "settings"}, "data": {"SEPARATOR": "a\0b"}}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/configmaps", settings)
    spec = light_spec()
    spec["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    jobs.create("nul", spec)
    failed = jobs.await_condition("nul", "Failed")
    assert 'invalid environment variable "SEPARATOR": contains nul byte' in failed["message"]
    assert "mount that as a volume" in failed["message"], "what to do"


@together
def test_what_is_in_the_way_is_told_while_the_cluster_deletes_the_pods(jobs: Jobs) -> None:
    """It deletes those of a node that is not there, again and again; the job was silent until the next one was old."""
    spec = light_spec(replicas=1)
    spec["template"]["spec"]["nodeName"] = "missing-node"
    jobs.create("lost", spec)
    await_told(jobs, "lost", "PodNotStarting")
    (pod,) = jobs.pods("lost")
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}"
    jobs.kube.request("DELETE", path, {"gracePeriodSeconds": 0})

    def is_another() -> bool:
        return any(one["metadata"]["uid"] != pod["metadata"]["uid"] for one in jobs.pods("lost"))

    wait_for(is_another, "there is another pod")
    assert "missing-node" in await_told(jobs, "lost", "PodNotStarting", 0.0)


@together
def test_a_startup_deadline_says_what_was_in_the_way(jobs: Jobs) -> None:
    jobs.create("late", spec_with_config_map(runPolicy={"startupDeadlineSeconds": 600}))
    pods = await_placed(jobs, "late")
    for pod in pods:
        tell_of(jobs, pod, "FailedMount", 'configmap "settings" not found')
    await_told(jobs, "late", "PodNotStarting")
    jobs.patch("late", {"runPolicy": {"startupDeadlineSeconds": 1}})
    failed = jobs.await_condition("late", "Failed")
    assert failed["reason"] == "StartupDeadlineExceeded"
    assert "runPolicy.startupDeadlineSeconds" in failed["message"]
    assert 'FailedMount: configmap "settings" not found' in failed["message"]


@together
def test_a_claim_that_nothing_provisions_is_named(jobs: Jobs) -> None:
    """The scheduler says only that there is one."""
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    body = {"metadata": {"name": "datasets"}, "spec": claim}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/persistentvolumeclaims", body)
    spec = light_spec()
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}}
    spec["template"]["spec"]["volumes"] = [volume]
    jobs.create("unbound", spec)
    wait_for(lambda: "unbound immediate" in await_told(jobs, "unbound", "Unschedulable"), "the scheduler has spoken")
    assert "PersistentVolumeClaim datasets" in await_told(jobs, "unbound", "Unschedulable")


@together
def test_a_claim_that_waits_for_its_pod_is_named(jobs: Jobs, cluster: Cluster) -> None:
    """The scheduler has chosen a node, and waits for the volume without a word."""
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    late = {"provisioner": "example.com/gone", "volumeBindingMode": "WaitForFirstConsumer"}
    cluster.kube.request("POST", classes, {"metadata": {"name": jobs.namespace}, **late})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "saves"}, "spec": {**claim, "storageClassName": jobs.namespace}}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/persistentvolumeclaims", body)
    spec = light_spec(replicas=1)
    volume = {"name": "saves", "persistentVolumeClaim": {"claimName": "saves"}}
    spec["template"]["spec"]["volumes"] = [volume]
    try:
        jobs.create("late", spec)
        told = await_told(jobs, "late", "PodNotStarting", 90)
        assert "(spec.template.spec.volumes: PersistentVolumeClaim saves)" in told
    finally:
        cluster.kube.request("DELETE", f"{classes}/{jobs.namespace}")


@together
def test_what_keeps_pods_off_all_nodes_is_named(jobs: Jobs, cluster: Cluster) -> None:
    """The scheduler says what nodes lack, and not which field of the template asks for it."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    chosen = {"nodeSelector": {"sandbox": "gvisor"}}
    cluster.kube.request("POST", classes, {"metadata": {"name": jobs.namespace}, "handler": "h", "scheduling": chosen})
    alone = {"labelSelector": {"matchLabels": {"app": "alone"}}, "topologyKey": "kubernetes.io/hostname"}
    zones = {"maxSkew": 1, "topologyKey": "example.com/zone", "whenUnsatisfiable": "DoNotSchedule"}
    port = {"ports": [{"containerPort": 7, "hostPort": 29500}]}
    wanted: list[tuple[str, int, dict[str, Any], str]] = [
        ("selector", 2, {"nodeSelector": {"gpu": "h100"}}, "spec.template.spec.nodeSelector: gpu=h100"),
        ("class", 2, {"runtimeClassName": jobs.namespace}, f"spec.template.spec.runtimeClassName: {jobs.namespace}"),
        ("spread", 2, {"topologySpreadConstraints": [zones]}, "topologySpreadConstraints: example.com/zone"),
        ("alone", 4, {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}},
         "spec.template.spec.affinity.podAntiAffinity: kubernetes.io/hostname"),
        ("ports", 4, port, "spec.template.spec.containers: hostPort 29500 of worker"),
    ]  # fmt: skip
    try:
        for name, size, fields, _ in wanted:
            spec = light_spec(replicas=size, elasticPolicy={"minReplicas": size})
            spec["template"]["metadata"] = {"labels": {"app": name}}
            pod = spec["template"]["spec"]
            (pod["containers"][0] if fields is port else pod).update(fields)
            jobs.create(name, spec)
        for name, _, _, words in wanted:
            assert words in await_told(jobs, name, "Unschedulable")
    finally:
        cluster.kube.request("DELETE", f"{classes}/{jobs.namespace}")


@together
def test_what_keeps_further_pods_off_all_nodes_is_told_when_they_are_withdrawn(jobs: Jobs) -> None:
    spec = light_spec(replicas=2, elasticPolicy={"minReplicas": 1, "scalingTimeoutSeconds": 1})
    spec["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 7, "hostPort": 29501}]
    spec["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-0"}
    jobs.create("further", spec)
    jobs.await_world("further", 1)

    def is_told() -> bool:
        return "1 pods were not scheduled within" in await_told(jobs, "further", "Unschedulable")

    wait_for(is_told, "a pod is withdrawn")
    told = await_told(jobs, "further", "Unschedulable")
    assert "free ports" in told and "hostPort 29501 of worker" in told


@contextlib.contextmanager
def dead_webhook(cluster: Cluster, namespace: str, policy: str = "Fail") -> Iterator[None]:
    """A webhook for pods of this namespace that nobody serves."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    hook = {
        "name": "dead.hook.example",
        "clientConfig": {"url": f"https://127.0.0.1:{free_port()}/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"hooked": namespace}},
        "failurePolicy": policy,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kube = cluster.kube
    label = {"metadata": {"labels": {"hooked": namespace}}}
    kube.request("PATCH", f"/api/v1/namespaces/{namespace}", label, content_type="application/merge-patch+json")
    kube.request("POST", path, {"metadata": {"name": namespace}, "webhooks": [hook]})
    try:
        yield
    finally:
        kube.request("DELETE", f"{path}/{namespace}")


@together
def test_an_admission_webhook_that_fails_is_told(jobs: Jobs, cluster: Cluster) -> None:
    with dead_webhook(cluster, jobs.namespace):
        jobs.create("hooked", light_spec())
        told = await_told(jobs, "hooked", "WriteFailed", timeout=40)
        assert 'failed calling webhook "dead.hook.example"' in told
        assert jobs.pods("hooked") == []
    jobs.await_world("hooked", 2)
    wait_for(lambda: jobs.condition("hooked", "Degraded")["status"] == "False", "nothing is told any more")
    assert jobs.status("hooked")["restarts"]["total"] == 0


@together
def test_an_admission_webhook_that_may_fail_is_in_nobodys_way(jobs: Jobs, cluster: Cluster) -> None:
    with dead_webhook(cluster, jobs.namespace, "Ignore"):
        jobs.create("hooked", light_spec())
        jobs.await_world("hooked", 2)
        assert jobs.condition("hooked", "Degraded").get("status") != "True"
        assert "WriteFailed" not in [reason for reason, _ in jobs.events("hooked")]


@together
def test_an_init_container_that_fails_is_named(jobs: Jobs) -> None:
    spec = light_spec(elasticPolicy={"maxRestarts": 0})
    spec["template"]["spec"]["initContainers"] = [{"name": "download", "image": "light/agent:1", "command": ["false"]}]
    jobs.create("fetches", spec)
    failed = jobs.await_condition("fetches", "Failed")
    assert "init container 'download'" in failed["message"]
    degraded = jobs.condition("fetches", "Degraded")
    assert degraded.get("status") != "True", "a job that has ended lacks no pods"


@together
def test_a_pod_for_windows_is_refused(jobs: Jobs) -> None:
    for name, fields in (("by-os", {"os": {"name": "windows"}}), ("by-node", {"nodeSelector": {OS: "windows"}})):
        spec = light_spec()
        spec["template"]["spec"] |= fields
        jobs.create(name, spec)
        failed = jobs.await_condition(name, "Failed")
        assert failed["reason"] == "InvalidSpec"
        assert f"spec.template: spec.{next(iter(fields))}" in failed["message"]
        assert jobs.pods(name) == []


@together
def test_a_limit_that_others_add_is_not_the_templates(jobs: Jobs) -> None:
    ranges = f"/api/v1/namespaces/{jobs.namespace}/limitranges"
    limits = [{"type": "Container", "default": {"cpu": "100m"}, "defaultRequest": {"cpu": "10m"}}]
    jobs.kube.request("POST", ranges, {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    spec = light_spec()
    spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "200m"}}
    jobs.create("limited", spec)
    told = await_told(jobs, "limited", "PodAltered")
    assert "container 'worker' has no resources.limits[cpu] in spec.template: a LimitRange" in told
    jobs.kube.request("DELETE", f"{ranges}/small")
    jobs.await_world("limited", 2)
