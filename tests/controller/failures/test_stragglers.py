"""Who is slower than the others, when a replacement begins, and when it is given up."""

from __future__ import annotations

import pytest

from controller.builders import NOW, make_agent, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import stragglers
from elasticjob_operator.failures.stragglers import Replaced
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.times import format_time

WORLD = make_world(2, (0, 1, 2, 3))
U1 = frozenset({"u1"})
PRESENT = {"u0", "u1", "u2", "u3"}


def told(seconds: dict[int, float], generation: int = 2) -> dict[str, Agent]:
    """The agents of these members, with what they need for a step without waiting."""
    return {
        f"u{index}": make_agent(
            index, "running", 2, progress=wire.Progress(generation=generation, rank=index, own_seconds=own)
        )
        for index, own in seconds.items()
    }


def record(index: int = 1, own: float = 2.0, others: float = 1.0, **fields: str) -> api.StragglerStatus:
    return api.StragglerStatus(
        rank=index,
        pod=f"digits-worker-{index}",
        uid=f"u{index}",
        node=f"node{index}",
        own_seconds=own,
        others_seconds=others,
        since=format_time(NOW - 100),
        **fields,
    )


@pytest.mark.parametrize(
    ("seconds", "before", "slow"),
    [
        pytest.param({0: 1, 1: 1, 2: 1, 3: 1}, [], [], id="all alike"),
        pytest.param({0: 1, 1: 1.6, 2: 1, 3: 1}, [], [1], id="one is slow"),
        pytest.param({0: 1, 1: 1.4, 2: 1, 3: 1}, [], [], id="not slow enough"),
        pytest.param({0: 1, 1: 1.4, 2: 1, 3: 1}, [record()], [1], id="one that was slow stays slow for longer"),
        pytest.param({0: 1, 1: 1.2, 2: 1, 3: 1}, [record()], [], id="it has become faster"),
        pytest.param({0: 2, 1: 3, 2: 1, 3: 1}, [], [1, 0], id="two are slow, the slowest first"),
        pytest.param({0: 2, 1: 2, 2: 1}, [], [], id="two of three: neither is slower than most"),
        pytest.param({0: 1, 1: 2}, [], [1], id="two of four have told"),
        pytest.param({1: 2}, [], [], id="one alone is not compared"),
        pytest.param({1: 1}, [record()], [1], id="nor cleared"),
        pytest.param({0: 1, 2: 1, 3: 1}, [record()], [1], id="one that has told nothing yet is kept"),
        pytest.param({}, [record()], [1], id="a new world has told nothing yet"),
        pytest.param({0: 0.001, 1: 0.0016, 2: 0.001, 3: 0.001}, [], [1], id="short steps"),
    ],
)
def test_who_is_slow(seconds: dict[int, float], before: list[api.StragglerStatus], slow: list[int]) -> None:
    found = stragglers.update(before, WORLD, told(seconds), PRESENT, NOW)
    assert [one.rank for one in found] == slow
    assert all(one.since == format_time(NOW) for one in found if one.rank not in {b.rank for b in before})


def test_reports_of_another_world_do_not_count() -> None:
    assert stragglers.update([], WORLD, told({0: 1, 1: 9, 2: 1, 3: 1}, generation=1), PRESENT, NOW) == []


def test_a_record_names_the_rank_the_pod_and_the_node() -> None:
    agents = told({0: 1, 1: 1, 2: 2, 3: 1})
    slowest = wire.Progress(generation=2, rank=4, own_seconds=2, slowest_rank=5)
    agents["u2"] = make_agent(2, "running", 2, progress=slowest)
    (found,) = stragglers.update([], WORLD, agents, PRESENT, NOW)
    assert (found.rank, found.pod, found.node, found.slowdown) == (5, "digits-worker-2", "node2", 2.0)


def test_small_changes_of_the_numbers_are_not_written() -> None:
    before = [record(own=2.0)]
    assert stragglers.update(before, WORLD, told({0: 1, 1: 2.2, 2: 1, 3: 1}), PRESENT, NOW) == before
    (after,) = stragglers.update(before, WORLD, told({0: 1, 1: 3.0, 2: 1, 3: 1}), PRESENT, NOW)
    assert (after.own_seconds, after.since) == (3.0, before[0].since)


@pytest.mark.parametrize("own", [0.0, 5e-324])
def test_a_record_that_says_nothing_is_replaced(own: float) -> None:
    """Whoever may write the status may write that it was as fast as can be."""
    (found,) = stragglers.update([record(own=own)], WORLD, told({0: 1, 1: 3, 2: 1, 3: 1}), PRESENT, NOW)
    assert found.own_seconds == 3.0
    known = {"goodput": {"lastRecoverySeconds": 10.0}, "progress": {"estimatedRemainingSeconds": 1000.0}}
    assert not stragglers.pays(record(own=own), api.Status.model_validate(known))


def test_the_list_is_bounded() -> None:
    world = make_world(2, tuple(range(40)))
    agents = told({index: 1 if index < 25 else index for index in range(40)})
    found = stragglers.update([], world, agents, set(), NOW)
    assert [one.rank for one in found] == list(range(39, 31, -1))


def test_a_replaced_pod_is_kept_until_it_is_gone() -> None:
    smaller = make_world(3, (0, 2, 3))
    begun = record(replace_time=format_time(NOW - 5))
    assert stragglers.update([begun], smaller, {}, PRESENT, NOW) == [begun]
    assert stragglers.update([begun], smaller, {}, PRESENT - {"u1"}, NOW) == []
    assert stragglers.update([record()], smaller, {}, PRESENT, NOW) == [], "it has left for another reason"


def ago(seconds: float) -> str:
    return format_time(NOW - seconds)


@pytest.mark.parametrize(
    ("wish", "found", "status", "begun"),
    [
        pytest.param("Replace", [record()], {}, [True], id="begins"),
        pytest.param("Report", [record()], {}, [False], id="is only reported"),
        pytest.param("Replace", [record(1, 3), record(2, 2)], {}, [True, False], id="one at a time, the slowest"),
        pytest.param("Replace", [record(9)], {}, [False], id="is no member any more"),
        pytest.param(
            "Replace",
            [record(2, 3), record(replace_time=ago(60))],
            {},
            [False, True],
            id="a new attempt does not begin while one is young",
        ),
        pytest.param(
            "Replace",
            [record()],
            {"timeline": [api.WorldStatus(generation=2, time=ago(600), cause="straggler")]},
            [False],
            id="the last one was ten minutes ago",
        ),
        pytest.param(
            "Replace",
            [record()],
            {"timeline": [api.WorldStatus(generation=2, time=ago(2000), cause="straggler")]},
            [True],
            id="the last one was longer ago",
        ),
        pytest.param(
            "Replace",
            [record()],
            {
                "goodput": api.GoodputStatus(last_recovery_seconds=10),
                "progress": api.ProgressStatus(step=1, estimated_remaining_seconds=10),
            },
            [False],
            id="does not pay any more",
        ),
        pytest.param(
            "Replace",
            [record()],
            {
                "goodput": api.GoodputStatus(last_recovery_seconds=10),
                "progress": api.ProgressStatus(step=1, estimated_remaining_seconds=30),
            },
            [True],
            id="pays",
        ),
    ],
)
def test_when_a_replacement_begins(
    wish: str, found: list[api.StragglerStatus], status: dict[str, object], begun: list[bool]
) -> None:
    spec = make_spec(2, 4, health={"stragglers": wish})
    seen = api.Status(rendezvous=WORLD).model_copy(update={**status, "stragglers": found})
    after = stragglers.choose_replacement(spec, seen, NOW)
    assert [one.replace_time is not None for one in after] == begun


@pytest.mark.parametrize(
    ("one", "timeout", "expected"),
    [
        pytest.param(record(), 60, Replaced(), id="not begun"),
        pytest.param(record(replace_time=ago(10)), 60, Replaced(U1, until=NOW + 20), id="begun"),
        pytest.param(record(replace_time=ago(31)), 60, Replaced(until=NOW + 1769), id="no pod came in time"),
        pytest.param(record(replace_time=ago(31)), 120, Replaced(U1, until=NOW + 29), id="with more time"),
        pytest.param(
            record(9, replace_time=ago(999)),
            60,
            Replaced(gone=frozenset({"u9"}), until=NOW + 801),
            id="its pod is still there",
        ),
        pytest.param(record(replace_time=ago(-99)), 60, Replaced(until=NOW + 129), id="the clock was set back"),
    ],
)
def test_who_is_being_replaced(one: api.StragglerStatus, timeout: int, expected: Replaced) -> None:
    spec = make_spec(2, 4, health={"stragglers": "Replace"}, elasticPolicy={"scalingTimeoutSeconds": timeout})
    status = api.Status(rendezvous=WORLD, stragglers=[one])
    assert stragglers.find_replaced(spec, status, NOW) == expected


def test_the_replacement_avoids_the_node() -> None:
    assert stragglers.nodes_of([record(), record(2, replace_time=ago(1))]) == ("node2",)
