"""Faults between agents and hub, and of agents and nodes: partitions without a reset, pauses, many deaths at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from chaos.hub_relay import HubRelay
from chaos.lab import Lane, Stage
from chaos.stories import PATIENCE, QUICK, check_history, lose_rank
from chaos.trials import Trial, run_trials
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]

ALL = 3
QUIET = ("--heartbeat-timeout", "2")


def begin(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=ALL))
    stage.jobs.await_world(stage.name, ALL, timeout=PATIENCE)


def generation(stage: Stage) -> int:
    found: int = stage.jobs.status(stage.name)["rendezvous"]["generation"]
    return found


def member_pods(stage: Stage) -> list[str]:
    return [m["pod"] for m in stage.jobs.status(stage.name)["rendezvous"]["members"]]


def pause_longer_than_patience(stage: Stage) -> None:
    """A worker is stopped until the others continue without it; then it resumes."""
    begin(stage)
    before, victim = generation(stage), member_pods(stage)[1]
    cluster, namespace = stage.jobs.cluster, stage.jobs.namespace
    cluster.kill_pod(namespace, victim, signal.SIGSTOP)
    stage.proxy.faults["paused"] += 1
    wait_for(lambda: generation(stage) > before, "the others go on", PATIENCE)
    cluster.kill_pod(namespace, victim, signal.SIGCONT)
    settle(stage)


def rank_0_again_and_again(stage: Stage) -> None:
    begin(stage)
    for _ in range(3):
        lose_rank(stage, 0)
        stage.proxy.faults["killed"] += 1
    settle(stage)
    assert stage.jobs.status(stage.name)["restarts"]["total"] == 0, "lost pods are free"


def all_at_once(stage: Stage) -> None:
    begin(stage)
    before = generation(stage)
    for pod in member_pods(stage):
        stage.jobs.cluster.kill_pod(stage.jobs.namespace, pod, signal.SIGKILL)
        stage.proxy.faults["killed"] += 1
    stage.jobs.await_world(stage.name, ALL, above=before, timeout=PATIENCE)
    settle(stage)


def second_fault_during_recovery(stage: Stage) -> None:
    begin(stage)
    pods = member_pods(stage)
    stage.jobs.cluster.kill_pod(stage.jobs.namespace, pods[2], signal.SIGKILL)
    stage.operator.kill()
    stage.jobs.cluster.kill_pod(stage.jobs.namespace, pods[0], signal.SIGKILL)
    stage.proxy.faults["killed"] += 3
    wait_for(lambda: not {pods[2], pods[0]} <= set(live_uids(stage)), "both are noticed", PATIENCE)
    settle(stage)


def live_uids(stage: Stage) -> list[str]:
    return [p["metadata"]["name"] for p in stage.jobs.pods(stage.name) if p["status"].get("phase") == "Running"]


def settle(stage: Stage) -> None:
    """Wait until all train again: every pod is a member, and no two worlds trained at once."""
    wait_for(lambda: trains_wholly(stage), f"all train again: {stage.jobs.status(stage.name)}", 2 * PATIENCE, 0.2)
    check_history(stage, strict=False)


def trains_wholly(stage: Stage) -> bool:
    status = stage.jobs.status(stage.name)
    uids = {p["metadata"]["uid"] for p in stage.jobs.pods(stage.name)}
    members = {m["uid"] for m in status["rendezvous"]["members"]}
    return status.get("readyReplicas") == ALL and uids == members


def partition(share: float) -> Callable[[Stage, HubRelay], None]:
    def tell(stage: Stage, relay: HubRelay) -> None:
        begin(stage)
        stage.proxy.faults["muted"] += relay.mute(share)
        time.sleep(4)  # longer than the hub's patience: what is tried is that time passes in silence
        relay.heal()
        settle(stage)

    return tell


def run_behind_relay(lane: Lane, tell: Callable[[Stage, HubRelay], None]) -> None:
    port = free_port()
    relay = HubRelay(port)
    relay.start()
    try:
        with lane.open(*QUIET, hub_port=port, hub_url=f"ws://127.0.0.1:{relay.port}") as stage:
            tell(stage, relay)
    finally:
        relay.stop()


@pytest.mark.parametrize(
    "share", [pytest.param(0.34, id="one"), pytest.param(0.67, id="most"), pytest.param(1, id="all")]
)
def test_silence_between_agents_and_hub(lanes: list[Lane], share: float) -> None:
    run_behind_relay(lanes[0], partition(share))


def test_workers_that_stand_still_or_die(lanes: list[Lane]) -> None:
    stories = (pause_longer_than_patience, rank_0_again_and_again, all_at_once, second_fault_during_recovery)
    report = run_trials("pods-short", 0, lanes, [Trial(s.__name__, s, QUIET) for s in stories])
    assert not report.violations, "\n\n".join(report.violations)
