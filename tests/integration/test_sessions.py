"""The session example under the real operator: the world changes, the survivors' processes stay."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticjob_devcluster import Cluster
from elasticjob_devcluster.local import localize
from operator_fixture import ROOT, Jobs, wait_for
from torch_features import needs_fsdp_on_cpu

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def read_steps(jobs: Jobs, pod: str) -> list[dict[str, Any]]:
    """The steps in the pod's log, the oldest first."""
    lines = []
    for text in jobs.cluster.logs(jobs.namespace, pod).splitlines():
        if text.startswith('{"event": "step"') and text.endswith("}"):
            lines.append(json.loads(text))
    return lines


def await_step(jobs: Jobs, pod: str, size: int, generation: int) -> None:
    def look() -> bool:
        return any(s["worldSize"] == size and s["generation"] >= generation for s in read_steps(jobs, pod))

    wait_for(look, f"{pod} makes a step in a world of {size}", timeout=120, poll=0.2)


def await_routine(jobs: Jobs, pods: list[str], generation: int, steps: int = 30) -> None:
    """Wait until the world has made enough steps that it is known what is usual in it."""

    def look() -> bool:
        return all(sum(s["generation"] == generation for s in read_steps(jobs, pod)) >= steps for pod in pods)

    wait_for(look, f"{pods} make {steps} steps in generation {generation}", timeout=120, poll=0.2)


OVER_NCCL = str(ROOT / "tests/worker/programs/over_nccl.py")


def start(jobs: Jobs, example: str, folders: dict[str, Path], program: str | None = None, /, **policy: int) -> None:
    """An example of the gallery under its own name, for as long as the test wants. `program` runs the script of it."""
    manifest = yaml.safe_load((ROOT / f"manifests/examples/{example}.yaml").read_text())
    job = localize(manifest, {"/opt/elasticjob/examples": ROOT / "worker_image/examples", **folders})
    job["spec"]["elasticPolicy"] |= policy
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    command += ["--epochs=10000", "--step-seconds=0.1"]
    command[1:1] = [program] if program else []
    jobs.create(example, job["spec"])


def await_survivor(jobs: Jobs, pod: str, size: int, generation: int, *, waited: bool = False) -> list[dict[str, Any]]:
    """The steps of a pod that was in both worlds: of one process, and none of them twice.

    `waited`: there may be a world between them without it. If an epoch has ended there, it has begun again.
    """
    await_step(jobs, pod, size, generation)
    steps = read_steps(jobs, pod)
    if waited:
        return steps
    assert len({step["pid"] for step in steps}) == 1, f"a worker of {pod} was started again"
    # A rank that missed the end of a step gets it from another: it counts on, one step further.
    gaps = {after["step"] - before["step"] for before, after in itertools.pairwise(steps)}
    assert gaps <= {1, 2}
    return steps


@needs_fsdp_on_cpu
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({}, id="every-size", marks=pytest.mark.long),
        pytest.param({"replicaIncrementStep": 2}, id="even-sizes"),
    ],
)
def test_a_sharded_model_outlives_a_lost_pod(
    policy: dict[str, int], jobs: Jobs, cluster: Cluster, tmp_path: Path
) -> None:
    """In worlds of even sizes one of three survivors waits: not the one that alone has a shard."""
    start(jobs, "fsdp-session", {"/checkpoints": tmp_path}, **policy)
    four = jobs.await_world("fsdp-session", 4, timeout=120)["rendezvous"]
    pods = [member["pod"] for member in four["members"]]
    for pod in pods:
        await_step(jobs, pod, 4, four["generation"])
    cluster.kill_pod(jobs.namespace, pods[1], signal.SIGKILL)
    again = jobs.await_world("fsdp-session", 4, above=four["generation"], timeout=200)
    generation = again["rendezvous"]["generation"]
    for pod in (pods[0], *pods[2:]):
        await_survivor(jobs, pod, 4, generation, waited=bool(policy) and pod == pods[2])
    assert jobs.status("fsdp-session")["restarts"]["total"] == 0, "nobody is blamed, also not who had to begin again"


@pytest.mark.parametrize(
    "program", [pytest.param(None, id="gloo"), pytest.param(OVER_NCCL, id="device", marks=pytest.mark.long)]
)
def test_a_paused_node_that_the_others_wait_for_is_given_up_and_comes_back(
    jobs: Jobs, cluster: Cluster, program: str | None
) -> None:
    """On a device the processors of those that wait are never still: they tell what their devices have completed."""
    start(jobs, "digits-session", {}, program, maxReplicas=3)
    jobs.scale("digits-session", 3)
    world = jobs.await_world("digits-session", 3, timeout=120)["rendezvous"]
    for _ in range(3):  # on a busy machine its heartbeats may be missed before it is seen who waits
        first, paused, third = pods = [member["pod"] for member in world["members"]]
        await_routine(jobs, pods, world["generation"])
        cluster.kill_pod(jobs.namespace, paused, signal.SIGSTOP)
        for pod in (first, third):
            await_step(jobs, pod, 2, world["generation"] + 1)
        cluster.kill_pod(jobs.namespace, paused, signal.SIGCONT)
        world = jobs.await_world("digits-session", 3, above=world["generation"] + 1, timeout=200)["rendezvous"]
        await_survivor(jobs, first, 3, world["generation"])
        lost = f"{paused} (rank 1) is lost: it does not answer, and the others wait for it"
        if ("MemberLost", lost) in jobs.events("digits-session"):
            return
    pytest.fail(f"nobody was given up because others wait: {jobs.events('digits-session')}")


def test_survivors_keep_their_processes(jobs: Jobs, cluster: Cluster) -> None:
    start(jobs, "digits-session", {}, maxReplicas=3)
    two = jobs.await_world("digits-session", 2, timeout=120)
    await_step(jobs, two["rendezvous"]["members"][1]["pod"], 2, two["rendezvous"]["generation"])
    jobs.scale("digits-session", 3)
    three = jobs.await_world("digits-session", 3, timeout=120)["rendezvous"]
    pods = [member["pod"] for member in three["members"]]
    for pod in pods:
        await_step(jobs, pod, 3, three["generation"])
    cluster.kill_pod(jobs.namespace, pods[0], signal.SIGKILL)
    again = jobs.await_world("digits-session", 3, above=three["generation"], timeout=200)
    for pod in pods[1:]:
        await_survivor(jobs, pod, 3, again["rendezvous"]["generation"])
    steps = read_steps(jobs, pods[1])
    last = max(step["step"] for step in steps if step["generation"] == three["generation"])
    assert steps[-1]["step"] > last, "training went on"
    assert again["restarts"]["total"] == 0

    def has_told() -> bool:
        worlds = {world["generation"]: world for world in jobs.status("digits-session")["timeline"]}
        told = worlds[again["rendezvous"]["generation"]]
        return bool(told.get("stateBytes", 0) > 1000 and 0 < told["stateSeconds"] < told["lostSeconds"])

    wait_for(has_told, "what the newcomer received is in the timeline", timeout=60)
