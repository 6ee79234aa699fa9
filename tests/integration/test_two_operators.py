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
from operator_fixture import MERGE, Jobs, OperatorProcess, delete_jobs, install_crd, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_SECONDS = 3
STOPPED_SECONDS = 1.5  # less than a leader may be silent
LONGEST_SECONDS = 12 * LEASE_SECONDS  # until a job of a release that is gone is taken over
AFTER_SECONDS = 60.0  # and until its pods were replaced, on a busy machine
Start = Callable[[str], OperatorProcess]


def leads(operator: OperatorProcess) -> bool:
    return "leading as" in operator.log


def owner_of(jobs: Jobs, name: str) -> str:
    """The name of the release that decides."""
    return str(jobs.status(name).get("operator", {}).get("release", "")).rpartition("/")[2]


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
    told = [message for reason, message in shared.events("grows") if reason == "DecidedElsewhere"]
    assert told and all("/first" in one and "/second" in one for one in told), "both are named"
    assert owner_of(shared, "grows") == "first"


def test_the_other_one_goes_on_when_the_first_is_gone(shared: Jobs, start: Start) -> None:
    first = start("first")
    shared.create("left", light_spec(replicas=2))
    before = shared.await_world("left", 2)
    hubs, generation = hubs_of(shared, "left"), before["rendezvous"]["generation"]
    start("second")
    wait_for(lambda: [r for r, _ in shared.events("left") if r == "DecidedElsewhere"], "the second one has seen it")
    first.kill()  # and its Lease stays as it is: nobody has released it
    wait_for(lambda: owner_of(shared, "left") == "second", "it is taken over", LONGEST_SECONDS + AFTER_SECONDS)
    after = shared.await_world("left", 2, above=generation, timeout=AFTER_SECONDS + 60)
    assert not hubs_of(shared, "left") & hubs
    assert [r for r, _ in shared.events("left") if r == "TakenOver"] == ["TakenOver"]
    assert after["restarts"].get("total", 0) == 0, "nobody is charged"
    first.start()
    wait_for(lambda: leads(first), "the first one is back")
    shared.scale("left", 3)
    shared.await_world("left", 3, above=after["rendezvous"]["generation"])
    assert owner_of(shared, "left") == "second", "it stands back"


def test_an_operator_that_restarts_keeps_its_jobs(shared: Jobs, start: Start) -> None:
    first = start("first")
    shared.create("kept", light_spec(replicas=2))
    generation = shared.await_world("kept", 2)["rendezvous"]["generation"]
    start("second")
    wait_for(lambda: [r for r, _ in shared.events("kept") if r == "DecidedElsewhere"], "the second one has seen it")
    first.kill()
    first.start()  # with another identity
    wait_for(lambda: leads(first), "it leads again")
    shared.scale("kept", 3)
    shared.await_world("kept", 3, above=generation)
    assert owner_of(shared, "kept") == "first"
    assert [r for r, _ in shared.events("kept") if r == "TakenOver"] == []


def test_different_namespaces_are_the_remedy(shared: Jobs, start: Start) -> None:
    """Whose Lease is renewed does not decide over the job for ever: it does not watch the namespace any more."""
    first = start("first")
    shared.create("moved", light_spec(replicas=1))
    generation = shared.await_world("moved", 1)["rendezvous"]["generation"]
    first.stop()
    first.flags = (*first.flags[:-1], "default")
    first.start()
    wait_for(lambda: leads(first), "it watches another namespace")
    start("second")
    shared.await_world("moved", 1, above=generation, timeout=LONGEST_SECONDS + AFTER_SECONDS + 60)
    assert owner_of(shared, "moved") == "second"


def test_new_jobs_have_one_of_two_operators(shared: Jobs, start: Start) -> None:
    shared.create("known", light_spec(replicas=1))  # by which they meet
    start("first")
    shared.await_world("known", 1)
    start("second")
    wait_for(lambda: [r for r, _ in shared.events("known") if r == "DecidedElsewhere"], "they have met")
    names = [f"new-{number}" for number in range(4)]
    for name in names:
        shared.create(name, light_spec(replicas=2))
    for name in names:
        shared.await_world(name, 2)
        assert len(hubs_of(shared, name)) == 1
        assert owner_of(shared, name) in ("first", "second")


def test_a_claim_of_a_tenant_is_none(shared: Jobs, start: Start) -> None:
    """Who makes or edits a job has no say in its status."""
    claim = {"operator": {"release": "nowhere/nobody"}}
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "mine"}}
    shared.kube.request("POST", shared.path, {**body, "spec": light_spec(replicas=1), "status": claim})
    assert "operator" not in shared.status("mine")
    start("first")
    shared.await_world("mine", 1)
    shared.kube.request("PATCH", f"{shared.path}/mine", {"status": claim}, content_type=MERGE)
    shared.scale("mine", 2)
    shared.await_world("mine", 2)
    assert owner_of(shared, "mine") == "first"
