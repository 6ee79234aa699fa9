"""The regression guard: the messages and requests of an event. Never seconds, which vary on a busy machine."""

from __future__ import annotations

import contextlib
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cases, controlplane, launchers, scale, timeline
from benchmarks.launchers import local
from benchmarks.meter import Meter
from benchmarks.processes import RUN, find_marked, kill_marked
from benchmarks.scoreboard import costs
from benchmarks.system import JOBS, System
from elasticjob_devcluster import BinariesUnavailable
from elasticjob_devcluster.api.kube import MERGE
from elasticjob_operator.api import wire
from elasticjob_operator.hub import frames

PATIENCE = 90.0


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Whatever was started is gone afterwards."""
    try:
        yield
        assert find_marked(RUN) == []
    finally:
        kill_marked(RUN)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Here nobody but the operator deletes what a job has left."""
    with leaving_nothing():
        try:
            started = System(tmp_path_factory.mktemp("system"), flags=("--controllers=*,-garbagecollector",))
        except BinariesUnavailable as error:
            pytest.skip(f"no cluster: {error}")
        with started:
            yield started


def read_counts(launcher: local.Local, generation: int) -> dict[str, int]:
    """The hub's counts when all members of this generation ran."""
    found: list[dict[str, Any]] = []

    def runs() -> bool:
        found[:] = [
            line for line in launcher.trace() if line["event"] == "running" and line["generation"] == generation
        ]
        return bool(found)

    assert cases.wait_until(runs, PATIENCE), f"generation {generation} did not run"
    counts: dict[str, int] = found[0]["counts"]
    return counts


@pytest.mark.timeout(300)
def test_messages_of_a_start_and_of_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The hub learns of the loss from the connection. If a kubelet were first, it would tell the lost pod, too.
    monkeypatch.setattr(local, "LOOK_SECONDS", 2 * PATIENCE)
    launcher, meter = local.torchrun(), Meter()
    launcher.meter = meter
    job = launchers.Job(tmp_path, 2)
    run = cases.Run(launcher, timeline.Tail(job.steps))
    with leaving_nothing(), contextlib.closing(meter), contextlib.closing(launcher):
        launcher.open(job, wanted=2)
        began = min(launcher.start_agent(node) for node in range(2))
        run.world = cases.wait_for_world(run, 2, began, PATIENCE)
        assert run.world is not None, "the first world was not there"
        start = read_counts(launcher, 1)
        # An agent says hello, ready and running, and hears of its world once.
        assert start["connected"] == 2
        assert start["message:state"] <= 4
        assert start["directives"] <= 2
        bytes_of_start = meter.total
        assert bytes_of_start <= 2 * 4096, "upgrade, hello, welcome, world, states and a few heartbeats of each"
        event = launcher.kill(run.node_of(1), signal.SIGKILL)
        assert cases.wait_for_world(run, 1, event, PATIENCE) is not None, "the survivor did not go on"
        loss = read_counts(launcher, 2)
        # The survivor says that it stops, is ready and runs again; it hears that its world is over, and of the new one.
        assert loss["connected"] == 2, "the survivor kept its connection"
        assert loss["message:state"] - start["message:state"] <= 3
        assert loss["directives"] - start["directives"] <= 2
        assert meter.total - bytes_of_start <= 4096, "five messages and heartbeats"


def test_bytes_of_a_large_world() -> None:
    members = tuple(wire.Member(pod=f"w-{i}", rank=i, address=f"10.0.0.{i}", nproc=8) for i in range(1000))
    world = wire.World(generation=1, rank=999, members=members, store=wire.Store(address="10.0.0.1", port=40_000))
    assert len(frames.DirectiveEncoder().encode(world, sizes=True)) <= 256


def count_by_resource(requests: Counter[str]) -> dict[str, int]:
    """The operator's requests by resource."""
    found: Counter[str] = Counter()
    for labels, count in requests.items():
        match = re.search(r'resource="([^"]*)"', labels)
        assert match is not None
        found[match[1]] += count
    return dict(found)


def count_writes_of_a_rescale(system: System) -> dict[str, int]:
    """The operator's own writes from a user's `spec.replicas` until nothing happens any more, by resource."""
    kube, namespace = system.cluster.kube, system.make_namespace()
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    body = controlplane.build_elastic_job("grows", 3)
    body["spec"]["replicas"] = 2
    kube.request("POST", path, body)
    assert cases.wait_until(lambda: system.count_pods(namespace) == 2, PATIENCE)
    scale.settle(system, PATIENCE)
    before = scale.count_requests(system)
    kube.request("PATCH", f"{path}/grows", {"spec": {"replicas": 3}}, content_type=MERGE)
    assert cases.wait_until(lambda: system.count_pods(namespace) == 3, PATIENCE)
    scale.settle(system, PATIENCE)
    return count_by_resource(costs.only_writes(scale.count_requests(system) - before))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_requests_of_a_deletion(system: System) -> None:
    """The operator deletes what a job has left, with one request for each."""
    pods = 10
    kube, namespace = system.cluster.kube, system.make_namespace()
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    kube.request("POST", path, controlplane.build_elastic_job("goes", pods))
    assert cases.wait_until(lambda: system.count_pods(namespace) == pods, PATIENCE)
    scale.settle(system, PATIENCE)
    before = scale.count_requests(system)
    kube.request("DELETE", f"{path}/goes")
    assert cases.wait_until(lambda: system.count_pods(namespace) == 0, PATIENCE), "the operator deletes the pods"
    scale.settle(system, PATIENCE)
    assert count_by_resource(scale.count_requests(system) - before) == {"pods": pods, "networkpolicies": 1}


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_requests_of_a_jobs_life(system: System) -> None:
    pods = 10
    ours, _ = controlplane.find_kinds("1.20")
    life = controlplane.live(system, ours, jobs=1, pods=pods)
    assert life.created is not None
    assert life.deleted is not None
    assert life.writes["POST", "pods"] == pods, "one request a pod, none twice"
    # NetworkPolicy, `spec.replicas` and the status; a PodDisruptionBudget comes with the first world.
    assert sum(life.writes.values()) <= pods + 3, dict(life.writes)
    rescale = count_writes_of_a_rescale(system)
    assert rescale.pop("pods") == 1
    assert set(rescale) == {"elasticjobs/status"}
    assert rescale["elasticjobs/status"] <= 2, "one, unless the new pod is seen in a pass of its own"
    assert not scale.measure_idle(system, 3.0), "while nothing happens there are only watches"
