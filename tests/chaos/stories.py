"""The scenarios: events of a user or the cluster for one job, and the expected end state.

A scenario waits for states, never for times, so it works under any transient fault.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos import history
from chaos.lab import Stage
from elasticjob_devcluster import KubeError
from operator_fixture import wait_for

PATIENCE = 45.0
QUICK = ("--step-seconds", "0.05")
Story = Callable[[Stage], None]


def start(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=2))
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)


def grow(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=1))
    stage.jobs.await_world(stage.name, 1, timeout=PATIENCE)
    stage.jobs.scale(stage.name, 2)
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)


def shrink(stage: Stage) -> None:
    start(stage)
    stage.jobs.scale(stage.name, 1)
    stage.jobs.await_world(stage.name, 1, timeout=PATIENCE)


def loss(stage: Stage) -> None:
    start(stage)
    lose_rank(stage, 1)
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)


def lose_rank(stage: Stage, rank: int) -> None:
    """Send SIGKILL, and wait until the world has changed."""
    world = stage.jobs.status(stage.name)["rendezvous"]
    victim = world["members"][rank]
    stage.jobs.cluster.kill_pod(stage.jobs.namespace, victim["pod"], signal.SIGKILL)

    def noticed() -> bool:
        members = stage.jobs.status(stage.name)["rendezvous"].get("members", [])
        return victim["uid"] not in [m["uid"] for m in members]

    wait_for(noticed, "the lost member is out of the world", PATIENCE)


def failure(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec("--fail-at", "3:1", *QUICK, replicas=1))
    wait_for(
        lambda: stage.jobs.status(stage.name).get("restarts", {}).get("total") == 1, "the failure is charged", PATIENCE
    )
    stage.jobs.await_world(stage.name, 1, above=1, timeout=PATIENCE)


def suspend(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=1))
    stage.jobs.await_world(stage.name, 1, timeout=PATIENCE)
    stage.jobs.patch(stage.name, {"runPolicy": {"suspend": True}})
    stage.jobs.await_condition(stage.name, "Suspended", timeout=PATIENCE)
    wait_for(lambda: not stage.jobs.pods(stage.name), "the pods are gone", PATIENCE)
    stage.jobs.patch(stage.name, {"runPolicy": {"suspend": False}})
    stage.jobs.await_world(stage.name, 1, above=1, timeout=PATIENCE)


def completion(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec("--steps", "10", *QUICK, replicas=2))
    stage.jobs.await_condition(stage.name, "Complete", timeout=PATIENCE)


def delete(stage: Stage) -> None:
    """Nothing is left; the control plane's garbage collector takes its time."""
    start(stage)
    stage.jobs.delete(stage.name)
    wait_for(lambda: not stage.jobs.pods(stage.name), "the pods are gone", 2 * PATIENCE)


def again(stage: Stage) -> None:
    """Delete, and create the same name again at once: it waits until the first job's objects are collected."""
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=1))
    stage.jobs.await_world(stage.name, 1, timeout=PATIENCE)
    old = {p["metadata"]["uid"] for p in stage.jobs.pods(stage.name)}
    stage.jobs.delete(stage.name)
    wait_for(lambda: create_again(stage), "the name is free again", PATIENCE)
    stage.jobs.await_world(stage.name, 1, timeout=2 * PATIENCE)
    assert not old & {m["uid"] for m in stage.jobs.status(stage.name)["rendezvous"]["members"]}
    # The new job has a history of its own: its generations begin anew.
    stage.log_file.rename(stage.log_file.with_suffix(".both"))


def create_again(stage: Stage) -> bool:
    try:
        stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=1))
    except KubeError as error:
        if error.status != 409:
            raise
        return False
    return True


STORIES: dict[str, Story] = {
    "start": start,
    "grow": grow,
    "shrink": shrink,
    "loss": loss,
    "failure": failure,
    "suspend": suspend,
    "completion": completion,
    "delete": delete,
    "again": again,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """The end state of a scenario without a fault."""

    left: dict[str, Any]
    writes: int
    requests: int


def tell_undisturbed(stage: Stage, story: Story) -> Ending:
    """Run the scenario and wait until nothing changes any more."""
    story(stage)
    writes = stage.proxy.writes  # what follows is progress, once a second
    deadline = time.monotonic() + PATIENCE
    last, same_since = stage.look(), time.monotonic()
    while time.monotonic() - same_since < 1.0:
        assert time.monotonic() < deadline, f"it does not come to rest: {last}"
        time.sleep(0.2)
        now = stage.look()
        if now != last:
            last, same_since = now, time.monotonic()
    check_history(stage)
    return Ending(last, writes, len(stage.proxy.requests))


def tell_disturbed(stage: Stage, story: Story, ending: Ending, *, strict: bool = True) -> None:
    """Run the scenario under the proxy's faults; the end state must be the same."""
    story(stage)
    try:
        wait_for(lambda: stage.look() == ending.left, "it leaves what it leaves undisturbed", PATIENCE, 0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\nexpected {ending.left}\nfound    {stage.look()}") from None
    check_history(stage, strict=strict)


def check_history(stage: Stage, *, strict: bool = True) -> None:
    wrong = history.check(stage.history(), strict=strict)
    assert not wrong, "\n".join(wrong)
    assert not stage.operator.crashes, f"the operator ended by itself:\n{stage.operator.log[-4000:]}"
    assert "this is a bug" not in stage.operator.log, f"the operator has a bug:\n{stage.operator.log[-4000:]}"
    assert "Traceback" not in stage.operator.log, f"the operator printed a traceback:\n{stage.operator.log[-4000:]}"
