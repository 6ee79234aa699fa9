"""What one rescale costs beside time: bytes of the control plane, and writes of our operator to the API server."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import cases, launchers, scale, timeline
from benchmarks.launchers import cluster
from benchmarks.launchers.catalogue import Contestant
from benchmarks.meter import Meter
from elasticjob_devcluster import BinariesUnavailable

PATIENCE = 90.0
AFTERMATH = 2.0  # seconds after the first step: the last status is written then
_WRITE = re.compile(r'verb="(POST|PUT|PATCH|DELETE)"')


class MeasurementError(RuntimeError):
    """Why there is no number."""


def settle(launcher: launchers.Launcher, directory: Path) -> cases.Run:
    """A job of two of at most three that has trained for a while."""
    job = launchers.Job(directory, 3)
    run = cases.Run(launcher, timeline.Tail(job.steps))
    launcher.open(job, wanted=2)
    began = min(launcher.start_agent(node) for node in range(2))
    run.world = cases.wait_for_world(run, 2, began, PATIENCE)
    if run.world is None:
        raise MeasurementError("the first world never was")
    time.sleep(cases.SETTLE)
    return run


def measure_bytes(contestant: Contestant) -> float:
    """Bytes between all agents and what coordinates them, from the start of the third node to its first step."""
    launcher, meter = contestant.make(), Meter()
    launcher.meter = meter
    try:
        with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
            run = settle(launcher, Path(directory))
            before = meter.total
            event = launcher.start_agent(100)
            if cases.wait_for_world(run, 3, event, PATIENCE) is None:
                raise MeasurementError(f"no world of three in {PATIENCE:.0f} s")
            return float(meter.total - before)
    finally:
        launcher.close()
        meter.close()


def count_writes(launcher: launchers.Launcher) -> float:
    """The operator's own writes from `spec.replicas` 3 instead of 2 until the status is still again."""
    try:
        with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
            run = settle(launcher, Path(directory))
            system = cluster.find_system()
            scale.settle(system, PATIENCE)
            before = scale.count_requests(system)
            event = launcher.start_agent(2)
            if cases.wait_for_world(run, 3, event, PATIENCE) is None:
                raise MeasurementError(f"no world of three in {PATIENCE:.0f} s")
            time.sleep(AFTERMATH)
            scale.settle(system, PATIENCE)
            return float(sum(only_writes(scale.count_requests(system) - before).values()))
    except BinariesUnavailable as error:
        raise MeasurementError(f"no cluster: {error}") from error
    finally:
        launcher.close()


def only_writes(requests: Counter[str]) -> Counter[str]:
    """Creations, updates and deletions among the operator's requests."""
    return Counter({labels: count for labels, count in requests.items() if _WRITE.search(labels)})
