"""Unmodified scripts under an unmodified `torchrun`, with only the environment that the operator sets."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from operator_fixture import ROOT, Jobs, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "worker_image/examples"


def torchrun_spec(out: Path, **changes: Any) -> dict[str, Any]:
    command = ["torchrun", str(EXAMPLES / "steps.py"), f"--out={out}", "--step-seconds=0.05"]
    return {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a/b:1", "command": command}]}},
        **changes,
    }


def read_steps(out: Path) -> list[dict[str, Any]]:
    """The whole lines of every rank, by time."""
    lines = [text for file in sorted(out.glob("*.jsonl")) for text in file.read_text().split("\n")[:-1]]
    return sorted((json.loads(text) for text in lines), key=lambda line: float(line["t"]))


def await_step(out: Path, world: int, after: float = 0.0) -> float:
    """When a rank of a world of this size first made a step after this moment."""

    def look() -> float | None:
        times = [float(s["t"]) for s in read_steps(out) if s["world"] == world and s["t"] > after]
        return min(times, default=None)

    return wait_for(look, f"a step in a world of {world}", timeout=120)


@pytest.mark.parametrize("rendezvous", [{}, {"backend": "c10d", "endpoint": "127.0.0.1:29478"}], ids=["", "c10d"])
def test_cpus_that_others_add_to_a_pod_count(jobs: Jobs, tmp_path: Path, rendezvous: dict[str, Any]) -> None:
    """The API server sets the defaults of a LimitRange in the pod, and the job's template knows nothing of them."""
    body = {"metadata": {"name": "range"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "2"}}]}}
    jobs.kube.request("POST", f"/api/v1/namespaces/{jobs.namespace}/limitranges", body)
    jobs.create("cpus", torchrun_spec(tmp_path, replicas=1, nprocPerNode="cpu", rendezvous=rendezvous))
    await_step(tmp_path, 2)
    status = wait_for(lambda: s if (s := jobs.status("cpus")).get("nprocPerNode") == 2 else None, "both are counted")
    assert status["rendezvous"]["processes"] == 2


def test_torchrun_grows_and_survives_the_loss_of_rank_0(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    jobs.create("steps", torchrun_spec(tmp_path))
    await_step(tmp_path, 2)
    status = jobs.await_world("steps", 2)
    jobs.scale("steps", 3)
    await_step(tmp_path, 3)
    status = jobs.await_world("steps", 3)
    generation = status["rendezvous"]["generation"]
    cluster.kill_pod(jobs.namespace, status["rendezvous"]["members"][0]["pod"], signal.SIGKILL)
    # The survivors may step at size 2, or be joined by the replacement before they do.
    wait_for(lambda: any(s["generation"] > generation for s in read_steps(tmp_path)), "a step after the loss", 120)
    after = jobs.await_world("steps", 3, above=generation, timeout=120)
    await_step(tmp_path, 3, after=read_steps(tmp_path)[-1]["t"])
    assert after["restarts"]["total"] == 0
    assert_one_world_at_a_time(read_steps(tmp_path))


def assert_one_world_at_a_time(steps: list[dict[str, Any]]) -> None:
    """No rank of an older world steps after a newer one has begun."""
    newest = 0
    for step in steps:
        assert step["generation"] >= newest, f"generation {step['generation']} stepped after {newest} began"
        newest = max(newest, step["generation"])


def test_torch_own_rendezvous_without_the_runtime(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    """Backend c10d: the operator gives environment and pods. The endpoint is named: processes have no DNS."""
    spec = torchrun_spec(tmp_path, rendezvous={"backend": "c10d", "endpoint": "127.0.0.1:29477"})
    jobs.create("c10d", spec)
    await_step(tmp_path, 2)
    jobs.await_world("c10d", 2)
    jobs.scale("c10d", 3)
    await_step(tmp_path, 3)
    env = {e["name"]: e.get("value") for e in jobs.pods("c10d")[0]["spec"]["containers"][0]["env"]}
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "ELASTICJOB_HUB_URL" not in env


def test_a_node_that_fails_the_preflight_is_left_alone(jobs: Jobs, tmp_path: Path) -> None:
    """The first pods prefer the node on which the check fails; it costs nothing, and the next ones go elsewhere."""
    spec = torchrun_spec(tmp_path, health={"preflight": "Node"})
    pod = spec["template"]["spec"]
    command = " ".join(pod["containers"][0]["command"])
    spoil = 'if [ "$ELASTICJOB_NODE_NAME" = node-1 ]; then export GLOO_SOCKET_IFNAME=nowhere0; fi'
    pod["containers"][0]["command"] = ["sh", "-c", f"{spoil}; exec {command}"]
    node = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}
    preferred = [{"weight": 10, "preference": node}]
    pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    jobs.create("unfit", spec)
    status = jobs.await_world("unfit", 2, timeout=120)
    assert "node-1" not in {m["node"] for m in status["rendezvous"]["members"]}
    assert [fault["node"] for fault in status["nodeFaults"]] == ["node-1"]
    assert status["restarts"]["user"] == 0
    assert status["lastFailure"]["reason"] == "PreflightFailed"
    assert "GLOO_SOCKET_IFNAME=nowhere0 does not exist here" in status["lastFailure"]["message"]


def test_a_mistake_in_the_script_fails_the_job_soon(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport not_a_module_xyz\n")
    spec = torchrun_spec(tmp_path)
    spec["template"]["spec"]["containers"][0]["command"] = ["torchrun", str(script)]
    jobs.create("mistake", spec)
    wait_for(lambda: jobs.condition("mistake", "Degraded").get("reason") == "CrashLoop", "a reason, not only a phase")
    failed = jobs.await_condition("mistake", "Failed", timeout=120)
    assert failed["reason"] == "CrashLoop"
    assert "No module named 'not_a_module_xyz'" in failed["message"]
    assert jobs.status("mistake")["restarts"]["total"] < 6


REPORTING = """
import time, elasticjob
step = 0
while True:
    step += 1
    loss = 1.0 if step < 20 else float("nan")
    elasticjob.report(step=step, samples=8, flops=1e6, peak_flops=1e9, loss=loss, lr=0.1)
    time.sleep(0.05)
"""


def test_a_loss_that_becomes_nan_is_named_in_the_status(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(REPORTING)
    spec = torchrun_spec(tmp_path, replicas=1)
    spec["template"]["spec"]["containers"][0]["command"] = ["torchrun", str(script)]
    jobs.create("nan", spec)
    wait_for(lambda: jobs.status("nan").get("progress", {}).get("notFinite") == ["loss"], "the loss is named")
    progress = jobs.status("nan")["progress"]
    assert progress["metrics"] == [{"name": "lr", "value": 0.1}]
    assert 0.001 < progress["mfu"] < 0.021, "20 steps a second of 1e6, of 1e9"
    assert progress["samplesPerSecond"] > 8
