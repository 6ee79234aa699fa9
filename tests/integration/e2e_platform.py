"""Container nodes with all images, and jobs on them: what the tests of the whole life cycle share."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import helm_python
import pytest

from chart_fixture import ROOT
from elasticjob_devcluster import Cluster, KubeError, NodeSpec, wait_until
from elasticjob_devcluster.containerd import tools

Object = dict[str, Any]
SYSTEM = "elasticjob-system"
JOBS = "/apis/elasticjob.dev/v1alpha1/namespaces/default/elasticjobs"
PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 240.0  # for what takes seconds on an idle machine


def load_images_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("e2e_images", ROOT / "scripts" / "e2e_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["e2e_images"] = module
    spec.loader.exec_module(module)
    return module


images = load_images_script()


@dataclass(frozen=True)
class Platform:
    cluster: Cluster
    helm: helm_python.Config
    shared: Path  # a folder that pods of both nodes have

    def get(self, path: str) -> Object:
        return self.cluster.kube.get(path) or {}

    def status(self, job: str) -> Object:
        status: Object = self.get(f"{JOBS}/{job}").get("status") or {}
        return status

    def world(self, job: str) -> int:
        return int((self.status(job).get("rendezvous") or {}).get("worldSize") or 0)

    def generation(self, job: str) -> int:
        return int((self.status(job).get("rendezvous") or {}).get("generation") or 0)

    def conditions(self, job: str) -> dict[str, str]:
        return {c["type"]: c["status"] for c in self.status(job).get("conditions") or ()}

    def pods(self, job: str) -> list[Object]:
        found = self.get(f"{PODS}?labelSelector=elasticjob.dev/job-name={job}")
        items: list[Object] = found["items"]
        return items

    def steps(self, job: str) -> list[Object]:
        """All steps that any process of the job has written, by time."""
        lines = [line for file in (self.shared / job).glob("*.jsonl") for line in file.read_text().splitlines()]
        return sorted((json.loads(line) for line in lines if line.endswith("}")), key=lambda line: float(line["t"]))

    def trains_at(self, job: str, size: int, *, above: int = 0) -> Callable[[], bool]:
        """Whether a world of this size, in a generation above this one, has made a step just now."""

        def check() -> bool:
            if self.world(job) != size or self.generation(job) <= above:
                return False
            steps = self.steps(job)
            return bool(steps) and steps[-1]["world"] == size and time.time() - float(steps[-1]["t"]) < 3

        return check

    def explain(self, job: str) -> str:
        """For the report of a failed test."""
        events = self.get("/api/v1/namespaces/default/events").get("items") or ()
        lines = [f"{e['involvedObject'].get('name')}: {e['reason']}: {e.get('message')}" for e in events]
        logs = []
        for pod in self.pods(job):
            name = pod["metadata"]["name"]
            with contextlib.suppress(KubeError):
                logs.append(f"--- {name} {pod['status'].get('phase')}\n{self.cluster.logs('default', name)[-1500:]}")
        for pod in self.get(f"/api/v1/namespaces/{SYSTEM}/pods").get("items") or ():
            with contextlib.suppress(KubeError):
                name = pod["metadata"]["name"]
                logs.append(f"--- {name}\n{self.cluster.logs(SYSTEM, name)[-3000:]}")
        return "\n".join([json.dumps(self.status(job), indent=1), *lines[-30:], *logs])

    def wait(self, condition: Callable[[], bool], what: str, job: str = "", seconds: float = PATIENCE) -> None:
        try:
            wait_until(condition, seconds, what, poll=0.3)
        except TimeoutError:
            pytest.fail(f"not after {seconds:.0f} s: {what}\n{self.explain(job)}")


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Two container nodes with all images, for all modules: each removes what it has installed."""
    if why := tools.why_unavailable() or images.why_unavailable():
        pytest.skip(why)
    try:
        archive = images.build_archive()
    except images.Unavailable as error:
        pytest.skip(f"the images cannot be built here: {error}")
    nodes = [NodeSpec(f"node-{i}", gpus=2, runtime="containerd") for i in range(2)]
    shared = Path(tempfile.mkdtemp(prefix="elasticjob-e2e-"))
    shared.chmod(0o777)
    cluster = Cluster.start(nodes)
    try:
        cluster.load_image(archive)
        with helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=SYSTEM) as helm:
            yield Platform(cluster, helm, shared)
    finally:
        cluster.stop()
        shutil.rmtree(shared, ignore_errors=True)


def submit(platform: Platform, job: Object) -> None:
    place = platform.shared / job["metadata"]["name"]
    place.mkdir()
    place.chmod(0o777)
    platform.cluster.kube.request("POST", JOBS, job)


def host_path(path: Path) -> Object:
    return {"name": "shared", "hostPath": {"path": str(path), "type": "Directory"}}


def plain_job(platform: Platform, name: str, replicas: int) -> Object:
    """An image with torch, a script from a ConfigMap, `torchrun`: nothing of ours anywhere."""
    container = {
        "name": "trainer",
        "image": images.reference("torch"),
        "imagePullPolicy": "Never",
        "command": ["torchrun", "/script/until_stopped.py", "/out"],
        "volumeMounts": [
            {"name": "script", "mountPath": "/script"},
            {"name": "shared", "mountPath": "/out"},
        ],
    }
    volumes = [{"name": "script", "configMap": {"name": "script"}}, host_path(platform.shared / name)]
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "gracefulShutdownTimeoutSeconds": 10},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
        },
    }


def ready_operators(platform: Platform) -> list[str]:
    pods = platform.get(f"/api/v1/namespaces/{SYSTEM}/pods").get("items") or ()
    return [
        p["metadata"]["name"]
        for p in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions") or ())
        and "deletionTimestamp" not in p["metadata"]
    ]
