"""Checkpoints without a volume: an unmodified script loses the pod that writes them, with its directory."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml

from elasticjob_devcluster import Cluster, KubeError
from elasticjob_devcluster.local import localize
from operator_fixture import ROOT, Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

MANIFEST = ROOT / "manifests/examples/digits-copies.yaml"


def read_events(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    """What the ranks of the pods that can be asked have said."""
    logs = []
    for pod in jobs.pods(name):
        with contextlib.suppress(KubeError):  # its node is lost, or it has not started
            logs.append(jobs.cluster.logs(jobs.namespace, pod["metadata"]["name"]))
    return [json.loads(line) for log in logs for line in log.splitlines() if line.startswith("{")]


def test_the_loss_of_rank_0s_node_costs_no_checkpoint(jobs: Jobs, cluster: Cluster) -> None:
    job = localize(yaml.safe_load(MANIFEST.read_text()), {"/opt/elasticjob/examples": ROOT / "worker_image/examples"})
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0]["command"] += ["--epochs=4", "--step-seconds=0.2"]
    pod["topologySpreadConstraints"][0] |= {"whenUnsatisfiable": "DoNotSchedule"}
    job["spec"]["elasticPolicy"] |= {"faultyPodTimeoutSeconds": 2}
    jobs.create("digits-copies", job["spec"])
    copied = jobs.await_condition("digits-copies", "CheckpointCopied", timeout=240)
    assert copied["reason"] == "Copied"
    status = jobs.status("digits-copies")
    first, second = status["rendezvous"]["members"]
    assert first["node"] != second["node"], "the job is spread"
    cluster.kill_node(first["node"])
    try:

        def found() -> list[dict[str, Any]]:
            said = read_events(jobs, "digits-copies")
            later = status["rendezvous"]["generation"]
            return [e for e in said if e["event"] == "start" and e["generation"] > later and e["rank"] == 0]

        starts = wait_for(found, "rank 0 starts again", 240)
        assert all(start["step"] >= 10 for start in starts), "from a checkpoint of the lost pod"
        jobs.await_condition("digits-copies", "Complete", timeout=300)
    finally:
        cluster.restart_node(first["node"])
