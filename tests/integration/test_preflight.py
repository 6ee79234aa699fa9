"""A node with a slow network under the real operator: it is found before the first world, and the others start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster.config import NodeSpec
from elasticjob_operator.api import names
from operator_fixture import ROOT, Jobs

# On a machine without a free core any link may be slow, so this is none of the tests that every change must pass.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.long]

PROGRAM = Path(__file__).parent / "programs" / "slow_link.py"
EXAMPLES = ROOT / "worker_image/examples"


def checked_spec(folder: Path, out: Path) -> dict[str, Any]:
    """Three pods on three nodes that check the network; one whose node has a file in `folder` receives at 0.5 MB/s."""
    command = [sys.executable, str(PROGRAM), str(folder), str(EXAMPLES / "steps.py")]
    container = {"name": "trainer", "image": "a/b:1", "command": [*command, f"--out={out}", "--step-seconds=0.05"]}
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    first = {"weight": 10, "preference": {"matchExpressions": [node]}}
    alone = {"labelSelector": {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]}}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [first]},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**alone, "topologyKey": "kubernetes.io/hostname"}]
        },
    }
    return {
        "replicas": 3,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 3, "maxRestarts": 0},
        "health": {"preflight": "Network"},
        "template": {"spec": {"affinity": affinity, "containers": [container]}},
    }


@pytest.fixture
def free_node(jobs: Jobs) -> Iterator[None]:
    """A fourth node, for the replacement."""
    jobs.cluster.add_node(NodeSpec("node-free"))
    yield
    jobs.cluster.remove_node("node-free")


@pytest.mark.usefixtures("free_node")
def test_the_node_with_a_slow_network_is_left_out(jobs: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "node-1").touch()
    jobs.create("slow", checked_spec(folder, tmp_path))
    status = jobs.await_world("slow", 3, timeout=300)
    assert "node-1" not in {member["node"] for member in status["rendezvous"]["members"]}
    assert [fault["node"] for fault in status["nodeFaults"]] == ["node-1"]
    assert (status["restarts"]["user"], status["restarts"]["total"]) == (0, 0)
    assert status["lastFailure"]["reason"] == "PreflightFailed" and "MiB/s" in status["lastFailure"]["message"]
    failed = [one for one in status["preflight"] if not one["passed"]]
    assert [one["node"] for one in failed] == ["node-1"] and "MiB/s elsewhere" in failed[0]["message"]
    sound = [one for one in status["preflight"] if one["passed"]]
    assert len(sound) == 3 and all(one["bytesPerSecond"] > 0 and one["roundTripSeconds"] > 0 for one in sound)
