"""The judge of writes: who held the Lease when a replica wrote."""

from __future__ import annotations

import dataclasses

import pytest

from replicas_fixture import Audited, find_writes_without_lease

SPACE = "leadership"


LEASE = Audited("one", "update", "leases", SPACE, "elasticjob-operator", 0.0, 0.1, 200, "one")
WRITE = Audited("one", "patch", "elasticjobs/status", SPACE, "job", 0.0, 0.1, 200, None)


def lease(at: float, replica: str, holder: str, code: int = 200) -> Audited:
    return dataclasses.replace(LEASE, replica=replica, holder=holder, received=at, done=at + 0.1, code=code)


def write(at: float, replica: str, verb: str = "patch") -> Audited:
    return dataclasses.replace(WRITE, replica=replica, verb=verb, received=at, done=at + 0.1)


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
            [lease(1, "one", "one"), lease(2, "", "x"), lease(3, "one", "", 409), write(5, "one")],
            [5],
            id="stolen and known",
        ),
        pytest.param([write(1, "")], [], id="somebody else"),
    ],
)
def test_the_judge(requests: list[Audited], guilty: list[float]) -> None:
    assert [r.received for r in find_writes_without_lease(requests, SPACE)] == guilty
