"""An upgrade and a roll-back of the operator as a user does them: two replicas on container nodes, while jobs train.

The other build writes a nested status field that this one does not know. No step is lost, no pod is changed, and each
build takes over from the other and acts.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_fixture import CHART, ROOT
from elasticjob_devcluster import KubeError
from integration.e2e_platform import JOBS, PODS, SYSTEM, Platform, plain_job, ready_operators, submit

pytestmark = [pytest.mark.container, pytest.mark.timeout(1800)]

Object = dict[str, Any]
SIZES = {"one": 1, "two": 2, "three": 1}
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def trains(platform: Platform) -> Iterator[Platform]:
    """The chart is installed and three jobs train."""
    platform.helm.install(CHART, "elasticjob", {}, namespace=SYSTEM, create_namespace=True, wait="watcher", timeout=300)
    script = (ROOT / "tests/integration/programs/until_stopped.py").read_text()
    body = {"metadata": {"name": "script"}, "data": {"until_stopped.py": script}}
    platform.cluster.kube.request("POST", "/api/v1/namespaces/default/configmaps", body)
    for name, size in SIZES.items():
        submit(platform, plain_job(platform, name, size))
    for name, size in SIZES.items():
        platform.wait(platform.trains_at(name, size), f"{name} trains", name)
    yield platform
    for name in SIZES:
        with contextlib.suppress(KubeError):
            platform.cluster.kube.request("DELETE", f"{JOBS}/{name}")
    platform.wait(lambda: not platform.get(PODS)["items"], "the pods are gone")


@pytest.fixture(scope="module")
def next_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of the other build: its CRD has the new field."""
    chart = tmp_path_factory.mktemp("next") / CHART.name
    shutil.copytree(CHART, chart)
    path = chart / "files" / "elasticjobs.yaml"
    crd = yaml.safe_load(path.read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    status["properties"]["rendezvous"]["properties"]["writtenBy"] = {"type": "string"}
    path.write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart


def look(platform: Platform) -> dict[str, Any]:
    """What may not change: the pods, how often their containers started, the worlds and the restarts."""
    found: dict[str, Any] = {}
    for name in SIZES:
        status = platform.status(name)
        found[name] = status["rendezvous"]["generation"], status["restarts"].get("total", 0)
        for pod in platform.pods(name):
            starts = [c["restartCount"] for c in pod["status"]["containerStatuses"]]
            found[pod["metadata"]["name"]] = pod["metadata"]["uid"], starts
    return found


def assert_no_step_is_lost(platform: Platform) -> None:
    """Each rank has made every step once, in one process, and makes them still."""
    for name, size in SIZES.items():
        steps = platform.steps(name)
        for rank in range(size):
            made = [s["step"] for s in steps if s["rank"] == rank]
            assert made == list(range(len(made))), f"{name}: rank {rank}"
        platform.wait(platform.trains_at(name, size), f"{name} goes on", name)


def written_by(platform: Platform, name: str) -> str:
    return str((platform.status(name).get("rendezvous") or {}).get("writtenBy") or "")


def write_as_next(platform: Platform, name: str) -> bool:
    """Write the newer build's field; False if it was dropped, because the API server still has the older definition."""
    body = {"status": {"rendezvous": {"writtenBy": "the next build"}}}
    platform.cluster.kube.request("PATCH", f"{JOBS}/{name}/status", body, content_type=MERGE)
    return is_written_by_next(platform, name)


def is_written_by_next(platform: Platform, name: str) -> bool:
    return written_by(platform, name) == "the next build"


def scale(platform: Platform, name: str, replicas: int) -> None:
    patch = {"spec": {"replicas": replicas}}
    platform.cluster.kube.request("PATCH", f"{JOBS}/{name}/scale", patch, content_type=MERGE)
    SIZES[name] = replicas
    platform.wait(platform.trains_at(name, replicas), f"{name} trains with {replicas}", name)


def is_led_by_next(platform: Platform) -> bool:
    """Whether the Lease names a replica of the newer build. The former leader may still have it while it ends."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/elasticjob"
    holder = str((platform.get(path).get("spec") or {}).get("holderIdentity") or "").rpartition("_")[0]
    pod = platform.get(f"/api/v1/namespaces/{SYSTEM}/pods/{holder}") if holder else {}
    return any(c["image"].endswith(":next") for c in (pod.get("spec") or {}).get("containers") or ())


def restarts_of_operators(platform: Platform) -> list[int]:
    pods = platform.get(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    return [c["restartCount"] for p in pods for c in p["status"]["containerStatuses"]]


def test_training_does_not_notice_an_upgrade_and_a_roll_back(trains: Platform, next_chart: Path) -> None:
    platform, before = trains, look(trains)
    values: Object = {"images": {"operator": {"tag": "next"}}}
    platform.helm.upgrade(next_chart, "elasticjob", values, wait="watcher", timeout=300)
    # Helm does not wait for the end of the older replicas. What the older leader answers, the newer one need not write.
    platform.wait(partial(is_led_by_next, platform), "the newer build leads")
    for name in SIZES:  # a change of no consequence: a status that says all there is to say is not written
        change = {"spec": {"runPolicy": {"ttlSecondsAfterFinished": int(time.time()) % 100_000}}}  # new in every try
        platform.cluster.kube.request("PATCH", f"{JOBS}/{name}", change, content_type=MERGE)
        platform.wait(partial(is_written_by_next, platform, name), f"{name} has a new leader", name)
    assert look(platform) == before
    assert_no_step_is_lost(platform)

    # Back, while the newer CRD stays, as it does where the CRD is not the chart's: the older build finds a field that
    # it does not know in every job.
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"
    newer = yaml.safe_load((next_chart / "files" / "elasticjobs.yaml").read_text())
    platform.helm.rollback("elasticjob", version=1, wait="watcher", timeout=300)
    platform.cluster.kube.request("PATCH", crd, {"spec": newer["spec"]}, content_type=MERGE)
    for name in SIZES:
        platform.wait(partial(write_as_next, platform, name), f"the API server takes the field of {name}", name)
    for pod in ready_operators(platform):
        platform.cluster.kube.request("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}")
        platform.wait(lambda pod=pod: pod not in ready_operators(platform), f"{pod} goes")  # type: ignore[misc]
        platform.wait(lambda: len(ready_operators(platform)) == 2, "two older replicas are ready")
    assert look(platform) == before
    assert_no_step_is_lost(platform)

    # The older build acts, and leaves what it does not know as it is.
    scale(platform, "one", 2)
    assert all(restarts == 0 for restarts in restarts_of_operators(platform)), "no replica of any build has ended"
    assert written_by(platform, "two") == "the next build"
