"""What a script saves when it is asked to end is in the archive before its pods go: all of them go at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster, DrainTimeout, KubeError, NodeSpec
from operator_fixture import Jobs, OperatorProcess, install_crd, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

AT_ONCE = 2  # see `side_by_side`: each has processes that import torch

PROGRAM = Path(__file__).parent / "programs/saves_last.py"
NOTICE = 25  # seconds from the request that a pod ends until it is killed
LARGE = 1024  # MiB


def make_spec(store: Path, mib: int, **checkpoints: Any) -> dict[str, Any]:
    """Saves are due after an hour, but for the first."""
    archive = {"to": "file:///archive/store", "everySeconds": 3600}
    container = {
        "name": "worker",
        "image": "a/b:1",
        "command": ["elasticjob-run", str(PROGRAM), "/checkpoints", "/archive/journal", f"--mib={mib}"],
        "volumeMounts": [{"name": "archive", "mountPath": "/archive"}],
    }
    return {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "gracefulShutdownTimeoutSeconds": NOTICE - 5},
        "checkpoints": {"path": "/checkpoints", "archive": archive, **checkpoints},
        "template": {
            "spec": {
                "containers": [container],
                "volumes": [{"name": "archive", "hostPath": {"path": str(store)}}],
            }
        },
    }


def read_journal(store: Path) -> list[tuple[str, int]]:
    """What rank 0 did, in order: "start", "asked" or "save", and at which step."""
    path = store / "journal"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(kind, int(step)) for kind, rank, step, _ in lines if rank == "0"]


def count_starts(store: Path) -> int:
    return [kind for kind, _ in read_journal(store)].count("start")


def begin(jobs: Jobs, store: Path, mib: int) -> tuple[str, int]:
    """A job that has archived a first save; the folder of its archive, and how often rank 0 has started."""
    store.mkdir()
    jobs.create("last", make_spec(store, mib))
    url = await_archived(jobs, "last")
    return url, count_starts(store)


def await_archived(jobs: Jobs, name: str) -> str:
    """The folder of the archive of a job, once the first save is there."""
    jobs.await_world(name, 2, timeout=240)
    jobs.await_condition(name, "CheckpointArchived", timeout=240)
    wait_for(lambda: jobs.status(name)["archive"].get("saves"), "the first save is archived", 240, 0.5)
    url: str = jobs.status(name)["archive"]["url"]
    return url


def await_next_start(store: Path, starts: int, mib: int) -> None:
    """After so many starts. The next one is at the last step: the script has loaded and checked all of its state.

    It may be of a world that the second pod joins at once: what follows that start is none of this.
    """
    wait_for(lambda: count_starts(store) > starts, "rank 0 starts again", 300, 0.2)
    print((store / "journal").read_text())
    journal = read_journal(store)
    kinds = [kind for kind, _ in journal]
    start = [index for index, kind in enumerate(kinds) if kind == "start"][starts]
    asked = max(index for index in range(start) if kinds[index] == "asked")
    step = journal[asked][1]
    assert journal[asked + 1 : start] == [("save", step)], "it saves once, when it is asked to"
    assert journal[start] == ("start", step), f"0 steps are lost with {mib} MiB"


SIZES = pytest.mark.parametrize("mib", [64, pytest.param(LARGE, marks=pytest.mark.long)])


@SIZES
@together
def test_pods_that_are_told_to_end_at_once_lose_no_step(jobs: Jobs, tmp_path: Path, mib: int) -> None:
    """Their nodes shut down, or somebody deletes all pods: no pod is left with a copy."""
    store = tmp_path / "store"
    starts = begin(jobs, store, mib)[1]
    for pod in jobs.pods("last"):
        jobs.kube.request("DELETE", f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}")
    await_next_start(store, starts, mib)


@SIZES
@together
def test_a_suspended_job_loses_no_step(jobs: Jobs, tmp_path: Path, mib: int) -> None:
    store = tmp_path / "store"
    starts = begin(jobs, store, mib)[1]
    jobs.patch("last", {"runPolicy": {"suspend": True}})
    jobs.await_condition("last", "Suspended", timeout=120)
    jobs.patch("last", {"runPolicy": {"suspend": False}})
    await_next_start(store, starts, mib)


@SIZES
@together
def test_a_deleted_job_loses_no_step(jobs: Jobs, tmp_path: Path, mib: int) -> None:
    """Another one begins with what it saved last, at another size."""
    store = tmp_path / "store"
    url, starts = begin(jobs, store, mib)
    jobs.delete("last")

    def is_gone() -> bool:
        try:
            return not jobs.get("last") and not jobs.pods("last")
        except KubeError:
            return False

    wait_for(is_gone, "the job and its pods are gone", 120, 0.5)
    jobs.create("next", make_spec(store, mib, **{"from": {"archive": url}}) | {"replicas": 3})
    await_next_start(store, starts, mib)


@pytest.mark.long
@pytest.mark.parametrize("mib", [64, LARGE])
def test_a_job_whose_only_node_is_drained_loses_no_step(
    cluster_factory: Callable[..., Cluster], tmp_path: Path, mib: int
) -> None:
    """Its budget keeps its last pod; whoever insists, as `kubectl drain --disable-eviction` does, deletes it."""
    store = tmp_path / "store"
    cluster = cluster_factory(nodes=[NodeSpec("node-0")])
    install_crd(cluster)
    jobs = Jobs(cluster, "drained")
    cluster.make_namespace(jobs.namespace)
    operator = OperatorProcess(cluster, tmp_path, "--stable-seconds", "1")
    operator.start()
    try:
        begin(jobs, store, mib)
        with pytest.raises(DrainTimeout):
            cluster.drain("node-0", timeout=90)
        left = [pod["metadata"] for pod in jobs.pods("last") if pod["spec"].get("nodeName")]
        assert len(left) == 1
        starts = count_starts(store)
        jobs.kube.request("DELETE", f"/api/v1/namespaces/{jobs.namespace}/pods/{left[0]['name']}")

        def is_gone() -> bool:
            return left[0]["uid"] not in [pod["metadata"]["uid"] for pod in jobs.pods("last")]

        wait_for(is_gone, "the last pod is gone", 120, 0.2)
        cluster.uncordon("node-0")
        await_next_start(store, starts, mib)
    finally:
        operator.stop()
        cluster.stop()
