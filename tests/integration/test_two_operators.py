"""Two releases of the operator over one namespace: each job has one of them that decides, and the other stands back.

They are two processes with a Lease each, as two releases of the chart are.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, OperatorProcess, delete_jobs, install_crd, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_SECONDS = 3
STOPPED_SECONDS = 1.5  # less than a leader may be silent
Start = Callable[[str], OperatorProcess]


def leads(operator: OperatorProcess) -> bool:
    return "leading as" in operator.log


@pytest.fixture
def start(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Start the operator of a release of this name, which watches the namespace, and wait until it leads."""
    install_crd(cluster)
    made: list[OperatorProcess] = []

    def begin(name: str, *more: str) -> OperatorProcess:
        place = tmp_path / name
        place.mkdir()
        lease = ("--leader-election", "--lease-name", name, "--lease-seconds", str(LEASE_SECONDS))
        settings = ("--operator-namespace", namespace, "--stable-seconds", "1", "--identity", name)
        operator = OperatorProcess(cluster, place, *lease, *settings, *(more or ("--namespace", namespace)))
        made.append(operator)
        operator.start()
        wait_for(lambda: leads(operator), f"{name} leads")
        return operator

    yield begin
    for operator in made:
        print(f"{operator.directory.name} said:\n{operator.log[-6000:]}")
        operator.stop()


@pytest.fixture
def shared(cluster: Cluster, namespace: str, start: Start) -> Iterator[Jobs]:
    jobs = Jobs(cluster, namespace)
    yield jobs
    delete_jobs(jobs)


def live_pods(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    return [pod for pod in jobs.pods(name) if "deletionTimestamp" not in pod["metadata"]]


def hubs_of(jobs: Jobs, name: str) -> set[str]:
    """The hubs that the job's pods follow."""
    return {
        variable["value"]
        for pod in live_pods(jobs, name)
        for variable in pod["spec"]["containers"][0]["env"]
        if variable["name"] == "ELASTICJOB_HUB_URL"
    }


def uids_of(jobs: Jobs, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in live_pods(jobs, name)}


def scale_while_stopped(jobs: Jobs, name: str, size: int, operator: OperatorProcess) -> None:
    """Change the size while this operator hangs for a moment, in which another one may act."""
    assert operator.process is not None
    operator.process.send_signal(signal.SIGSTOP)
    try:
        jobs.scale(name, size)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: len(live_pods(jobs, name)) == size, "another one acts", STOPPED_SECONDS)
    finally:
        operator.process.send_signal(signal.SIGCONT)


def test_a_job_that_changes_its_size_has_one_world(shared: Jobs, start: Start) -> None:
    first = start("first")
    shared.create("grows", light_spec(replicas=2))
    before = shared.await_world("grows", 2)
    pods, hubs = uids_of(shared, "grows"), hubs_of(shared, "grows")
    start("second")
    generation = before["rendezvous"]["generation"]
    scale_while_stopped(shared, "grows", 3, first)
    generation = shared.await_world("grows", 3, above=generation)["rendezvous"]["generation"]
    assert pods <= uids_of(shared, "grows"), "no pod was replaced"
    for size in (2, 3):
        shared.scale("grows", size)
        generation = shared.await_world("grows", size, above=generation)["rendezvous"]["generation"]
    assert generation == before["rendezvous"]["generation"] + 3, "one world for each change"
    assert len(live_pods(shared, "grows")) == 3
    assert hubs_of(shared, "grows") == hubs, "all pods follow the operator that decides"
