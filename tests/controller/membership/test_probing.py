"""Who measures what before pods join, when that begins, and who passes."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_pod, make_situation
from elasticjob_operator.api import wire
from elasticjob_operator.membership import probing
from elasticjob_operator.membership.member_health import Situation, Worker


def uid(index: int) -> str:
    return make_pod(index).uid


def link(index: int, rate: float = 4e8, problem: str | None = None) -> wire.Link:
    if problem:
        return wire.Link(uid=uid(index), problem=problem)
    return wire.Link(uid=uid(index), seconds=0.0002, bytes_per_second=rate, clock_seconds=0.0)


def checked(index: int, *links: wire.Link, over: bool = False, phase: str = "starting", node: str = "") -> Worker:
    check = wire.Preflight(port=30_000 + index, links=links, over=over)
    agent = make_agent(index, phase, state_since=NOW - 1, said={"preflight": check})
    return Worker(make_pod(index, node=node or f"node{index}"), agent)


def situation(*workers: Worker, **fields: Any) -> Situation:
    return make_situation(workers=workers, **fields)


def asked(made: probing.Probing) -> dict[int, list[int]]:
    """By index: the indices of those that it is to be measured with."""
    found = {}
    for one, told in made.directives.items():
        assert isinstance(told, wire.Probe) and told.passed is None
        assert all(peer.address == f"10.0.0.{peer.port - 30_000}" for peer in told.peers)
        found[int(one[1:])] = [int(peer.uid[1:]) for peer in told.peers]
    return found


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, {0: [1], 1: [0]}),
        (3, {0: [1, 2], 1: [2, 0], 2: [0, 1]}),
        (4, {0: [1, 2], 1: [2, 3], 2: [3, 0], 3: [0, 1]}),
        (5, {0: [1, 2], 1: [2, 3], 2: [3, 4], 3: [4, 0], 4: [0, 1]}),
        (8, {i: [(i + 1) % 8, (i + 4) % 8] for i in range(8)}),
        (64, {i: [(i + 1) % 64, (i + 32) % 64] for i in range(64)}),
    ],
)
def test_each_is_measured_with_the_next_node_and_one_half_way_round(size: int, expected: dict[int, list[int]]) -> None:
    assert asked(probing.decide(situation(*(checked(i) for i in range(size))))) == expected


def test_pods_of_one_node_are_not_measured_with_each_other() -> None:
    workers = [checked(i, node=f"node{i // 2}") for i in range(6)]
    assert asked(probing.decide(situation(*workers))) == {
        0: [2, 4],
        1: [3, 5],
        2: [4, 0],
        3: [5, 1],
        4: [0, 2],
        5: [1, 3],
    }


def test_who_joins_is_measured_with_two_members() -> None:
    members = [checked(i, link(1 - i), over=True, phase="ready") for i in range(2)]
    assert asked(probing.decide(situation(*members, checked(2)))) == {2: [0, 1]}
    found = probing.decide(situation(*members, checked(2, link(0), link(1))))
    assert found.directives == {uid(2): wire.Probe(passed=True)}


def test_a_bad_joiner_is_refused_and_the_members_are_left_alone() -> None:
    members = [checked(0, link(1), over=True, phase="ready"), checked(1, over=True, phase="ready")]
    found = probing.decide(situation(*members, checked(2, link(0, 1e6), link(1, 1e6))))
    (told,) = found.directives.values()
    assert isinstance(told, wire.Probe) and told.passed is False
    assert told.reason.startswith("1.0 MiB/s between node2 and node0, 381.5 MiB/s elsewhere")
    assert found.accuses


def test_nobody_is_judged_before_all_have_measured() -> None:
    first = checked(0, link(1), link(2))
    found = probing.decide(situation(first, checked(1), checked(2)))
    assert asked(found) == {0: [], 1: [2, 0], 2: [0, 1]}


def test_a_pod_that_is_alone_passes() -> None:
    assert probing.decide(situation(checked(0))).directives == {uid(0): wire.Probe(passed=True)}


@pytest.mark.parametrize(
    ("others", "missing", "seconds"),
    [
        pytest.param([Worker(make_pod(1))], 0, 10.0, id="a pod that starts"),
        pytest.param([], 1, 10.0, id="a pod that does not exist yet"),
        pytest.param([Worker(make_pod(1), make_agent(1, "starting"))], 0, 60.0, id="one whose own checks go on"),
        pytest.param([Worker(make_pod(1, "Pending", unschedulable=NOW - 9))], 0, None, id="one without room"),
        pytest.param([Worker(make_pod(1), make_agent(1, "running", 1))], 0, None, id="one that is not checked"),
    ],
)
def test_pods_that_start_together_are_checked_together(
    others: list[Worker], missing: int, seconds: float | None
) -> None:
    found = probing.decide(situation(checked(0), *others, missing=missing))
    if seconds is None:
        assert found.directives and found.wake_at is None
    else:
        assert (found.directives, found.wake_at) == ({}, NOW - 1 + seconds)
        assert probing.decide(situation(checked(0), *others, missing=missing, now=NOW + seconds)).directives


def test_without_a_check_nothing_is_told() -> None:
    assert probing.decide(situation(Worker(make_pod(0), make_agent(0, "starting")))) == probing.Probing()


def test_the_status_names_nodes_and_keeps_what_has_not_changed() -> None:
    bad = "no connection to 10.0.0.3: timed out"
    workers = (
        checked(0, link(1), link(2, problem=bad)),
        checked(1, link(0, 5e8), link(2, problem=bad)),
        checked(2),
    )
    first = probing.record([], situation(*workers))
    assert [(one.node, one.passed, one.bytes_per_second) for one in first] == [
        ("node2", False, None),
        ("node0", True, 500_000_000),
        ("node1", True, 500_000_000),
    ]
    assert first[0].message == f"{bad} between node0 and node2, and the same with node1"
    assert probing.record(first, situation(*workers, now=NOW + 60)) == first, "another time alone is no news"
    assert probing.record(first, situation()) == first
