"""Collectives, point to point and the checked mode, with four real processes on gloo."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.collectives.checked import Call, explain_mismatch
from elasticjob.collectives.unequal import should_pad
from worker.gang_helper import PROGRAMS, Member, run_gang


@pytest.fixture(scope="module")
def gang() -> list[Member]:
    return run_gang(PROGRAMS / "collectives_program.py", 4)


RANKS = [0, 1, 2, 3]
SAME_ON_ALL: dict[str, Any] = {
    "all_reduce sum": [10, 18],
    "all_reduce product": [24, 360],
    "all_reduce min": [1, 3],
    "all_reduce max": [4, 6],
    "all_reduce band": [0, 0],
    "all_reduce bor": [7, 7],
    "all_reduce bxor": [4, 4],
    "all_reduce mean": [1.5],
    "all_reduce async": [6.0],
    "all_gather": [8, 3],
    "all_gather values": [0, 0, 1, 1, 2, 2, 3, 3],
    "all_gather stack": [4, 2, 3],
    "all_gather out": [0, 0, 1, 1, 2, 2, 3, 3],
    "all_gather out async": RANKS,
    "all_gather out wrong": "out has 3 elements of torch.float32 on cpu: 24 of torch.float32 on cpu are needed.",
    "all_gather scalar": RANKS,
    "all_gather async": 12,
    "unequal first": [[0, 2], [1, 2], [2, 2], [3, 2]],
    "unequal any": [[2, 1, 4], [2, 2, 3], [2, 3, 2], [2, 4, 1]],
    "unequal dimensions": [[], [1], [1, 1], [1, 1, 1]],
    "unequal empty": [[0, 5]] * 4,
    "unequal skewed": [[1], [1000], [1], [1]],
    **{f"unequal {name} values": True for name in ("first", "any", "dimensions", "empty", "skewed")},
    "unequal dtypes": [True] * 12,
    "unequal mixed": ["torch.float32", "torch.float64", "torch.float16", "torch.bfloat16"],
    "unequal conjugate": [-1.0] * 4,
    "checked and right": 4.0,
    "checked library": RANKS,
    "unpatched": "torch.distributed.distributed_c10d",
}


@pytest.mark.parametrize("check", SAME_ON_ALL)
def test_every_rank_gets_the_same(gang: list[Member], check: str) -> None:
    assert [member.results[check] for member in gang] == [SAME_ON_ALL[check]] * 4


@pytest.mark.parametrize(
    ("check", "by_rank"),
    [
        ("gather", [None, None, [[0], [1], [2], [3]], None]),
        ("gather_unequal first", [None, None, None, SAME_ON_ALL["unequal first"]]),
        ("gather_unequal any", [None, None, None, SAME_ON_ALL["unequal any"]]),
        ("gather_unequal dimensions", [None, None, None, SAME_ON_ALL["unequal dimensions"]]),
        ("gather_unequal empty", [None, None, None, SAME_ON_ALL["unequal empty"]]),
        ("gather_unequal skewed", [None, None, None, SAME_ON_ALL["unequal skewed"]]),
        ("group", [2, 4, 2, 4]),
        ("group unequal", [[[0], [2]], [[1], [3]], [[0], [2]], [[1], [3]]]),
        ("group gather_unequal", [None, None, [[0], [2, 2, 2]], [[1, 1], [3, 3, 3, 3]]]),
        (
            "ring",
            [[[4, 2], "torch.int16", 3]] + [[[rank, 2], "torch.int16", rank - 1] for rank in (1, 2, 3)],
        ),
    ],
)
def test_each_rank_gets_its_own(gang: list[Member], check: str, by_rank: list[Any]) -> None:
    assert [member.results[check] for member in gang] == by_rank


@pytest.mark.parametrize("name", ["first", "any", "dimensions", "empty", "skewed"])
def test_gather_unequal_keeps_the_values(gang: list[Member], name: str) -> None:
    assert gang[3].results[f"gather_unequal {name} values"] is True


def test_an_empty_tensor_is_sent_and_received(gang: list[Member]) -> None:
    assert gang[1].results["empty"] == [0, 7]


@pytest.mark.parametrize(
    ("rank", "check", "words"),
    [
        (0, "all_reduce mean of int", ["op='mean'", "torch.int64", "convert it"]),
        (0, "all_reduce unknown", ["op='average'", "use mean, sum"]),
        (2, "not a member", ["rank 2 is not in this group"]),
        (0, "no such rank", ["rank 2 does not exist", "0 to 1"]),
        (0, "touched", ["changed in place before wait()", "clone()"]),
    ],
)
def test_a_wrong_call_is_explained(gang: list[Member], rank: int, check: str, words: list[str]) -> None:
    message = gang[rank].results[check]
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("mistake", "wrong_call"),
    [
        ("order", "rank 2: broadcast(float32 [4], src=0) at collectives_program.py:"),
        ("shape", "rank 2: all_reduce(float32 [5], op=SUM) at collectives_program.py:"),
        ("dtype", "rank 2: all_reduce(float64 [4], op=SUM) at collectives_program.py:"),
        ("op", "rank 2: all_reduce(float32 [4], op=MAX) at collectives_program.py:"),
        ("root", "rank 2: broadcast(float32 [4], src=1) at collectives_program.py:"),
        ("hidden store", "rank 2: all_reduce(float32 [2], op=SUM) at collectives_program.py:"),
    ],
)
def test_the_checked_mode_names_who_called_what(gang: list[Member], mistake: str, wrong_call: str) -> None:
    for member in gang:
        message = member.results[f"mistake {mistake}"]
        assert wrong_call in message
        assert "ranks 0, 1, 3: " in message


def test_the_checked_mode_names_the_rank_that_did_not_come(gang: list[Member]) -> None:
    for rank in (0, 1, 3):
        message = gang[rank].results["mistake missing"]
        assert "ranks 0, 1, 3: all_reduce" in message
        assert "rank 2: nothing for" in message
        assert "its last call was broadcast" in message
    assert "mistake missing" not in gang[2].results


def test_a_dead_rank_ends_every_collective_in_an_error() -> None:
    members = run_gang(PROGRAMS / "dead_rank_program.py", 3)
    ours = {"all_reduce", "all_gather", "gather", "all_gather_unequal", "gather_unequal", "recv"}
    theirs = {"broadcast", "reduce", "scatter", "all_to_all", "barrier"}
    for rank in (0, 2):
        results = members[rank].results
        assert set(results) == ours | theirs
        for name, (error, seconds) in results.items():
            assert error.startswith("CollectiveFailedError" if name in ours else "RuntimeError"), (rank, name)
            assert seconds < 25, (rank, name)
            if name in ours:
                assert f"failed on rank {rank}" in error
                assert "look at its output first" in error


SUM = Call("all_reduce", "float32 [4]", "op=SUM", "a.py:1")


@pytest.mark.parametrize(
    ("calls", "missing", "words"),
    [
        pytest.param({0: SUM, 1: SUM}, {}, None, id="all the same"),
        pytest.param(
            {0: SUM, 1: Call("all_reduce", "float32 [4]", "op=SUM", "b.py:7")}, {}, None, id="from another line"
        ),
        pytest.param(
            {0: SUM, 2: SUM, 1: Call("barrier")}, {}, ["ranks 0, 2: all_reduce", "rank 1: barrier()", "if rank"],
            id="another operation",
        ),
        pytest.param({0: SUM}, {3: "its last call was x"}, ["rank 3: nothing for 5 s; its last"], id="missing"),
        pytest.param(
            {0: SUM, 1: Call("all_reduce", "float32 [5]", "op=SUM")}, {}, ["gather_unequal"], id="another shape"
        ),
    ],
)  # fmt: skip
def test_explain_mismatch(calls: dict[int, Call], missing: dict[int, str], words: list[str] | None) -> None:
    message = explain_mismatch(1, "world", calls, missing, waited=5.0)
    if words is None:
        assert message is None
    else:
        assert message is not None
        assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("sizes", "pad"), [([4, 4, 4], True), ([0, 0, 1], False), ([8, 4], True), ([1000, 1, 1, 1], False)]
)
def test_padding_is_for_sizes_that_are_alike(sizes: list[int], pad: bool) -> None:
    assert should_pad(sizes) is pad
