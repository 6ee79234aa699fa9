"""Faults of the whole cluster, one after the other."""

from __future__ import annotations

import pytest

from chaos import clusterfaults
from chaos.hub_relay import HubRelay
from chaos.lab import Lane
from chaos.stories import PATIENCE
from chaos.trials import Trial, run_trials
from elasticjob_devcluster.system.addresses import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]


def test_the_cluster_changes_under_a_job(lanes: list[Lane]) -> None:
    trials = [Trial(story.__name__, story) for story in clusterfaults.STORIES]
    report = run_trials("cluster", 0, lanes[:1], trials)
    assert not report.violations, "\n\n".join(report.violations)


def test_every_message_twice(lanes: list[Lane]) -> None:
    port = free_port()
    relay = HubRelay(port)
    relay.twice = True
    relay.start()
    try:
        with lanes[0].open(hub_port=port, hub_url=f"ws://127.0.0.1:{relay.port}") as stage:
            clusterfaults.begin(stage)
            stage.jobs.scale(stage.name, 2)
            stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)
            clusterfaults.settle(stage, 2)
    finally:
        relay.stop()
    assert relay.repeated > 20
