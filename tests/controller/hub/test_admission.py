"""How limited slots are shared."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator import shares
from elasticjob_operator.hub import admission, limits
from elasticjob_operator.run import file_limits


@pytest.mark.parametrize(
    ("groups", "greed", "expected"),
    [
        pytest.param(1, 1.0, [50], id="one alone gets half"),
        pytest.param(1, 9.0, [90], id="a greedy one alone gets nine tenths"),
        pytest.param(3, 1.0, [25, 25, 25], id="three get the same, and as much is left"),
        pytest.param(9, 9.0, [11, 11, 11, 11, 11, 11, 11, 11, 11], id="many greedy ones leave one"),
    ],
)
def test_groups_that_take_all_they_can_get_leave_room_for_another(
    groups: int, greed: float, expected: list[int]
) -> None:
    room = shares.Room(100, greed)
    held = [0] * groups
    while any(took := [room.enter(f"group-{i}") for i in range(groups)]):
        held = [h + t for h, t in zip(held, took, strict=True)]
    assert held == expected
    assert len(room) == sum(held) < 100
    assert room.enter("another")


def test_a_place_that_is_given_back_can_be_taken_again() -> None:
    room = shares.Room(1)
    assert room.enter("a") and not room.enter("b")
    room.leave("a")
    assert len(room) == 0 and room.enter("b")


def test_an_allowance_is_spent_and_comes_back_and_is_each_ones_own() -> None:
    allowances = admission.Allowances(rate=1.0, burst=2.0)
    assert [allowances.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert allowances.is_spent("a", 0.5) and not allowances.is_spent("b", 0.5)
    assert not allowances.is_spent("a", 1.5) and allowances.take("a", 1.5)


def test_allowances_of_many_keys_cost_a_bounded_amount() -> None:
    allowances = admission.Allowances(rate=0.0, burst=1.0, capacity=2)
    for key in "abc":
        assert allowances.take(key, 0.0)
    assert not allowances.is_spent("a", 0.0), "the oldest is forgotten"
    assert allowances.is_spent("b", 0.0) and allowances.is_spent("c", 0.0)


@pytest.mark.parametrize(
    ("files", "agents"),
    [(64, 1), (256, 51), (1024, 577), (4096, 2883), (20_000, 16_760), (1_048_576, 20_000)],
)
def test_open_files_are_divided_and_none_is_promised_twice(files: int, agents: int) -> None:
    shares = file_limits.divide(files, parallel=64)
    bounded = shares.limit(limits.HubSettings())
    assert bounded.max_connections == agents
    if files >= 256:
        promised = (
            bounded.max_connections + bounded.max_pending_sockets + bounded.max_unauthenticated + bounded.max_pending
        )
        assert promised + shares.http + 64 < files
    assert min(bounded.max_pending_sockets, bounded.max_unauthenticated, bounded.max_pending, shares.http) >= 8


@pytest.mark.parametrize(
    ("soft", "hard", "says"),
    [
        pytest.param(256, 4096, "INFO the limit of 4096 open files allows 2915 agents", id="raised"),
        pytest.param(256, 1024, "WARNING the limit of 1024 open files allows 609 agents", id="too few"),
    ],
)
def test_the_limit_of_open_files_is_raised_and_what_it_is_enough_for_is_said(soft: int, hard: int, says: str) -> None:
    program = (
        "import logging, resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from elasticjob_operator.hub import limits\nfrom elasticjob_operator.run import file_limits\n"
        "logging.basicConfig(level='INFO', format='%(levelname)s %(message)s')\n"
        "file_limits.take_all(32, limits.HubSettings())\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == hard
    assert done.stderr.startswith(says)
    assert ("hard limit of open files" in done.stderr) is says.startswith("WARNING")


@pytest.mark.parametrize(
    ("sizes", "group", "own", "counted"),
    [
        ({}, "a", 3, 3),
        ({"a": 3}, "a", 3, 3),
        ({"a": 2}, "a", 3, 3),
        ({"b": 3_000}, "a", 2, 4),
        ({"a": 2, "b": 3_000, "c": 1}, "a", 2, 5),
        ({"a": 2, "b": 3_000, "c": 1}, "b", 3_000, 3_003),
        ({"a": 1_000, "b": 1_000}, "a", 1_000, 2_000),
        ({"a": 9, "b": 3}, "a", 2, 4),
    ],
)
def test_of_other_groups_as_many_count_as_the_own_one_has(
    sizes: dict[str, int], group: str, own: int, counted: int
) -> None:
    assert admission.Crowd(sizes).count(group, own) == counted


@given(st.lists(st.integers(min_value=1, max_value=20_000), min_size=1, max_size=50))
def test_the_shares_of_all_groups_fit_together(sizes: list[int]) -> None:
    """The largest group takes all of it at most, the next one half: together hardly more than a few would alone."""
    groups = {str(number): size for number, size in enumerate(sizes)}
    crowd = admission.Crowd(groups)
    for rank, group in enumerate(sorted(groups, key=groups.__getitem__, reverse=True), 1):
        assert groups[group] / crowd.count(group, groups[group]) <= 1 / rank
