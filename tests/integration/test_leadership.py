"""Only the leader acts: two replicas, every way to lose leadership, and the API server's audit log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster, KubeError
from operator_fixture import Jobs, install_crd, light_spec, wait_for
from replicas_fixture import Audited, AuditLog, Replicas, find_tenures, find_writes_without_lease

MOVES = ("pause", "term", "kill", "steal")
MANY_MOVES = (*MOVES, "term", "pause", "term", "kill", "steal", "pause")
SPACE = "leadership"

# The judge, by itself.

LEASE = Audited("one", "update", "leases", SPACE, "elasticjob-operator", 0.0, 0.1, 200, "one")
WRITE = Audited("one", "patch", "elasticjobs/status", SPACE, "job", 0.0, 0.1, 200, None)


def lease(at: float, replica: str, holder: str, code: int = 200) -> Audited:
    return dataclasses.replace(LEASE, replica=replica, holder=holder, received=at, done=at + 0.1, code=code)


def look(at: float, replica: str) -> Audited:
    return dataclasses.replace(LEASE, replica=replica, verb="get", holder=None, received=at, done=at + 0.1)


def write(at: float, replica: str, verb: str = "patch") -> Audited:
    return dataclasses.replace(WRITE, replica=replica, verb=verb, received=at, done=at + 0.1)


STOLEN = (lease(1, "one", "one"), lease(2, "", "x"), lease(3, "one", "", 409))


@pytest.mark.parametrize(
    ("requests", "guilty"),
    [
        pytest.param([lease(1, "one", "one"), write(2, "one")], [], id="the holder"),
        pytest.param([lease(1, "one", "one"), write(2, "two")], [2], id="the other one"),
        pytest.param([lease(1, "one", "one"), write(2, "two", "list")], [], id="the other one reads"),
        pytest.param([write(0.5, "one"), lease(1, "one", "one")], [0.5], id="before it had it"),
        pytest.param([lease(1, "one", "one"), lease(2, "two", "two"), write(3, "one")], [3], id="after it lost it"),
        pytest.param([lease(1, "one", "one"), lease(2, "two", "one", 409), write(3, "one")], [], id="a vain try"),
        pytest.param([lease(1, "one", "one"), lease(2, "one", ""), write(3, "one")], [3], id="after it gave it back"),
        pytest.param([lease(1, "one", "one"), lease(2, "", "x"), write(3, "one")], [], id="stolen and not known"),
        pytest.param(
            [*STOLEN, write(5, "one")],
            [5],
            id="stolen and known",
        ),
        pytest.param(
            [*STOLEN, write(4.5, "one"), look(5, "one"), write(5.1, "one")],
            [5.1],
            id="stolen, and known when it asks again",
        ),
        pytest.param(
            [*STOLEN, lease(4, "two", "two"), write(4.5, "one"), look(5, "one")],
            [4.5],
            id="stolen, and another one has it before it asks again",
        ),
        pytest.param([write(1, "")], [], id="somebody else"),
    ],
)
def test_the_judge(requests: list[Audited], guilty: list[float]) -> None:
    assert [r.received for r in find_writes_without_lease(requests, SPACE)] == guilty


# The replicas.


def make_namespace(cluster: Cluster) -> bool:
    try:
        cluster.make_namespace(SPACE)
    except KubeError as error:
        if error.status != 409:
            raise
        return False
    return True


@pytest.fixture
def replicas(audited: Cluster, tmp_path: Path) -> Iterator[Replicas]:
    install_crd(audited)
    wait_for(lambda: make_namespace(audited), "the namespace of an earlier attempt is deleted")
    started = Replicas(audited, tmp_path, SPACE, "--namespace", SPACE, "--certificate-check-seconds", "1")
    yield started
    started.stop()
    for name, operator in started.all.items():
        print(f"{name} said:\n{operator.log[-4000:]}")
    remove_namespace(audited, SPACE)


def has_acted(jobs: Jobs, name: str) -> bool:
    job = jobs.get(name)
    return bool(job["status"]["observedGeneration"] == job["metadata"]["generation"])


@pytest.mark.parametrize(
    "moves", [pytest.param(MOVES, id="each"), pytest.param(MANY_MOVES, id="many", marks=pytest.mark.long)]
)
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_no_write_without_the_lease(audited: Cluster, replicas: Replicas, moves: tuple[str, ...]) -> None:
    log = AuditLog(audited)
    log.read()
    replicas.start()
    jobs = Jobs(audited, SPACE)
    for name in ("a", "b", "c"):
        jobs.create(name, light_spec("--step-seconds", "0.1"))
    replicas.await_leader()
    for name in ("a", "b", "c"):
        jobs.await_world(name, 2)
    before = {name: jobs.status(name)["rendezvous"]["generation"] for name in ("a", "b", "c")}
    for turn, how in enumerate(moves):
        replicas.move(how)
        jobs.scale("a", 2 + (turn + 1) % 2)  # something to do for whoever leads
        wait_for(lambda: has_acted(jobs, "a"), "whoever leads acts")
    jobs.scale("a", 3)
    jobs.await_world("a", 3, above=before["a"], timeout=120)
    for name in ("b", "c"):
        assert jobs.status(name)["rendezvous"]["generation"] == before[name], "their worlds were left alone"
    replicas.stop()

    requests = log.read()
    tenures = find_tenures(requests, SPACE)
    assert len(tenures) > len(moves), "the leadership moved"
    writers = {r.replica for r in requests if r.replica and r.resource == "elasticjobs/status"}
    assert len(writers) > len(moves) / 2, "those who led acted"
    assert [str(r) for r in find_writes_without_lease(requests, SPACE)] == []
