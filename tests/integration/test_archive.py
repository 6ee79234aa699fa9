"""Checkpoints that outlive all pods: a real directory as the store, an unmodified script, a real operator."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster_fixture import make_claim
from elasticjob.archive import reading
from elasticjob.archive.layout import Save
from elasticjob.archive.storage import Storage
from elasticjob_devcluster import Cluster, KubeError, NodeSpec
from elasticjob_devcluster.local import localize
from operator_fixture import ROOT, Jobs, OperatorProcess, install_crd, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

AT_ONCE = 4  # see `side_by_side`: each has processes that import torch

MANIFEST = ROOT / "manifests/examples/digits-archive.yaml"


def make_spec(store: Path | None, **archive: Any) -> dict[str, Any]:
    """The example, with a short way to the store and a long way to its end. None: the store is the example's claim."""
    folders = {"/opt/elasticjob/examples": ROOT / "worker_image/examples"} | ({"/archive": store} if store else {})
    spec: dict[str, Any] = localize(yaml.safe_load(MANIFEST.read_text()), folders)["spec"]
    spec["checkpoints"]["archive"] |= {"everySeconds": 1} | archive
    container = spec["template"]["spec"]["containers"][0]
    container["command"] += ["--epochs=400", "--step-seconds=0.2", "--checkpoint-every=5"]
    container.pop("resources")
    return spec


def read_events(jobs: Jobs, name: str, kind: str) -> list[dict[str, Any]]:
    """What rank 0 of the pods that are there has said."""
    said = []
    for pod in jobs.pods(name):
        with contextlib.suppress(KubeError):  # it has not started
            said += jobs.cluster.logs(jobs.namespace, pod["metadata"]["name"]).splitlines()
    events = [json.loads(line) for line in said if line.startswith("{")]
    return [one for one in events if one["event"] == kind and one["rank"] == 0]


def await_start(jobs: Jobs, name: str) -> dict[str, Any]:
    return wait_for(lambda: read_events(jobs, name, "start"), "rank 0 starts", 240, 0.5)[0]


def find_newest(store: Path, url: str) -> Save:
    return reading.find_saves(Storage(f"file://{store}{url.removeprefix('file:///archive')}"))[0][1]


def step_of(save: Save) -> int:
    """The step that the script has written into the name of its newest file."""
    return max(int(path.removeprefix("step-").removesuffix(".pt")) for path in save.record.files)


@together
def test_a_job_goes_on_in_another_cluster_when_its_own_is_gone(
    cluster_factory: Callable[..., Cluster], jobs: Jobs, tmp_path: Path
) -> None:
    """First all pods go, then the namespace, then the control plane; what is left is the archive."""
    store = tmp_path / "store"
    store.mkdir()
    doomed = cluster_factory(nodes=[NodeSpec("node-0"), NodeSpec("node-1")])
    install_crd(doomed)
    elsewhere = Jobs(doomed, "doomed")
    doomed.make_namespace(elsewhere.namespace)
    operator = OperatorProcess(doomed, tmp_path, "--stable-seconds", "1")
    operator.start()
    try:
        elsewhere.create("digits", make_spec(store))
        elsewhere.await_condition("digits", "CheckpointArchived", timeout=240)
        url = elsewhere.status("digits")["archive"]["url"]
        wait_for(lambda: step_of(find_newest(store, url)) >= 10, "some steps are archived", 120, 0.5)
        assert elsewhere.status("digits")["archive"]["saves"], "the status lists them"
        operator.kill()  # no pod is replaced any more
        for pod in elsewhere.pods("digits"):
            path = f"/api/v1/namespaces/{elsewhere.namespace}/pods/{pod['metadata']['name']}"
            doomed.kube.request("DELETE", path, {"gracePeriodSeconds": 0})
        wait_for(lambda: not elsewhere.pods("digits"), "all pods are gone", 120, 0.2)
        doomed.kube.request("DELETE", f"/api/v1/namespaces/{elsewhere.namespace}")
    finally:
        operator.stop()
        doomed.stop()
    last = step_of(find_newest(store, url))
    spec = make_spec(store)
    spec["replicas"] = 3
    spec["checkpoints"]["from"] = {"archive": url}
    jobs.create("digits", spec)
    jobs.await_world("digits", 3, timeout=240)
    assert await_start(jobs, "digits")["step"] == last >= 10, "from the same step"
    jobs.await_condition("digits", "CheckpointArchived", timeout=120)
    mine = jobs.status("digits")["archive"]["url"]
    assert mine != url, "into a folder of its own"


@together
def test_a_job_begins_from_another_one_of_its_namespace(jobs: Jobs, tmp_path: Path) -> None:
    """It is there first, and waits; then the other one comes, saves, and goes."""
    store = tmp_path / "store"
    store.mkdir()
    spec = make_spec(store)
    spec["checkpoints"]["from"] = {"job": "digits"}
    jobs.create("fork", spec)
    told = jobs.await_condition("fork", "Degraded", timeout=60)
    assert told["reason"] == "NothingToRestore"
    assert "there is no ElasticJob digits" in told["message"]
    assert not jobs.pods("fork")
    jobs.create("digits", make_spec(store))
    jobs.await_condition("digits", "CheckpointArchived", timeout=240)
    url = jobs.status("digits")["archive"]["url"]
    wait_for(lambda: jobs.status("fork").get("origin"), "the other job has found where it begins", 120, 0.5)
    assert jobs.status("fork")["origin"] == {"job": "digits", "url": url}
    assert await_start(jobs, "fork")["step"] > 0, "not anew"
    jobs.await_condition("fork", "CheckpointArchived", timeout=120)
    assert jobs.status("fork")["archive"]["url"] != url, "into a folder of its own"


@together
def test_a_suspended_job_goes_on_with_what_it_saved_last(jobs: Jobs, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    make_claim(jobs.cluster, jobs.namespace, "archive", store)
    jobs.create("digits", make_spec(None, everySeconds=3600))
    jobs.await_condition("digits", "CheckpointArchived", timeout=240)
    url = jobs.status("digits")["archive"]["url"]
    first = step_of(find_newest(store, url))

    def has_saved_again() -> bool:
        return any(one["step"] >= first + 40 for one in read_events(jobs, "digits", "step"))

    wait_for(has_saved_again, "the script saves again, which is not due to be archived", 120, 0.5)
    jobs.patch("digits", {"runPolicy": {"suspend": True}})
    jobs.await_condition("digits", "Suspended", timeout=120)
    last = step_of(find_newest(store, url))
    assert last > first, "what it saved last was archived before the pods went"
    jobs.patch("digits", {"runPolicy": {"suspend": False}})
    assert await_start(jobs, "digits")["step"] == last


@together
def test_a_store_that_cannot_be_used_is_told_and_stops_nothing(jobs: Jobs, tmp_path: Path) -> None:
    if "gcsfs" in sys.modules:
        pytest.skip("gcsfs is installed")
    spec = make_spec(tmp_path, to="gs://bucket/runs")
    jobs.create("digits", spec)
    jobs.await_world("digits", 2, timeout=240)
    told = wait_for(lambda: jobs.condition("digits", "CheckpointArchived"), "it is told", 120)
    assert (told["status"], told["reason"]) == ("False", "ExtraMissing")
    assert "elasticjob[gcs]" in told["message"]
