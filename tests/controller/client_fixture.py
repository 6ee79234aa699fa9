"""Jobs, pods and a CRD for tests of the client and the command line. No operator runs; tests write the statuses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from elasticjob_devcluster import Cluster, KubeError, wait_until
from elasticjob_operator.api import names
from elasticjob_operator.client import Job

CRD = Path(__file__).parents[2] / "crds" / "elasticjob.dev_elasticjobs.yaml"
GENERATION_TIME = "2026-01-01T00:00:10Z"


def install_crd(cluster: Cluster) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    try:
        cluster.kube.request("POST", path, yaml.safe_load(CRD.read_text()))
    except KubeError as error:
        if error.status != 409:
            raise

    def served() -> bool:
        try:
            cluster.kube.request("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}")
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    wait_until(served, 30, "the API server serves ElasticJobs")


def manifest(name: str = "digits", **spec: Any) -> dict[str, Any]:
    base = {
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "template": {"spec": {"containers": [{"name": "worker", "image": "none", "command": ["sleep", "1000"]}]}},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": base | spec,
    }


def condition(type: str, status: str = "True", reason: str = "Because", message: str = "it is so") -> dict[str, str]:
    return {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": GENERATION_TIME,
    }


def running_status(pods: int = 2, *, generation: int = 3, nproc: int = 1, step: int = 40) -> dict[str, Any]:
    """A status of a training job, in the form that the operator writes."""
    members = [
        {"pod": f"digits-worker-{i}", "uid": f"u{i}", "node": f"node-{i}", "rank": i, "nproc": nproc}
        for i in range(pods)
    ]
    return {
        "phase": "Running",
        "conditions": [condition("Running", reason="WorldRunning", message="trains")],
        "replicas": pods,
        "readyReplicas": pods,
        "rendezvous": {
            "generation": generation,
            "worldSize": pods,
            "processes": pods * nproc,
            "members": members,
            "formedTime": GENERATION_TIME,
            "reason": "lost",
        },
        "restarts": {"user": 1, "infrastructure": 2, "total": 1},
        "progress": {
            "step": step,
            "totalSteps": 100,
            "percentage": step,
            "estimatedRemainingSeconds": 120,
            "metrics": [{"name": "loss", "value": 0.5}],
            "lastUpdateTime": GENERATION_TIME,
        },
        "goodput": {
            "trainingSeconds": 90.0,
            "lostSeconds": 10.0,
            "lastRecoverySeconds": 1.25,
            "rescales": 2,
            "training": True,
        },
    }


def job(status: dict[str, Any] | None = None, name: str = "digits", **spec: Any) -> Job:
    raw = manifest(name, **spec)
    raw["metadata"] |= {"namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return Job.parse(raw | {"status": running_status() if status is None else status})


def write_status(cluster: Cluster, namespace: str, name: str, status: dict[str, Any]) -> None:
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/status"
    cluster.kube.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


def pod_object(job: str, index: int, script: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": names.pod_name(job, index),
            "labels": {names.LABEL_JOB: job, names.LABEL_INDEX: str(index)},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "worker", "image": "none", "command": ["sh", "-c", script]}],
        },
    }


def run_pod(cluster: Cluster, namespace: str, job: str, index: int, script: str) -> dict[str, Any]:
    """Start a worker pod and wait until it runs or has run."""
    pod = cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod_object(job, index, script))
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"

    def started() -> bool:
        return cluster.kube.request("GET", path)["status"].get("phase") in ("Running", "Succeeded", "Failed")

    wait_until(started, 60, f"pod {pod['metadata']['name']} runs")
    return pod


def wait_until_gone(cluster: Cluster, namespace: str, pod: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    wait_until(lambda: cluster.kube.get(path) is None, 60, f"pod {pod} is gone")


def write_event(cluster: Cluster, namespace: str, subject: dict[str, str], reason: str, message: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = {
        "metadata": {"generateName": "e-"},
        "involvedObject": {"namespace": namespace, **subject},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": "test"},
    }
    cluster.kube.request("POST", f"/api/v1/namespaces/{namespace}/events", body)
