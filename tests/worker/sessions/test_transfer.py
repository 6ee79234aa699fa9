"""How a state is split, compared and sent: the rules as tables, the exchange with real processes."""

from __future__ import annotations

import pytest
import torch

from elasticjob.collectives import skeletons
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import transfer
from worker.gang_helper import PROGRAMS, Member, run_gang


def slot(index: int, numbers: int, device: str = "cpu") -> skeletons.Slot:
    return skeletons.Slot(index, (numbers,), torch.float32, device)


@pytest.mark.parametrize(
    ("slots", "chunks"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([slot(0, 10), slot(1, 10)], [[0, 1]], id="small ones together"),
        pytest.param([slot(0, 20), slot(1, 10)], [[0], [1]], id="no room"),
        pytest.param([slot(0, 10), slot(1, 99), slot(2, 10), slot(3, 10)], [[0], [1], [2, 3]], id="a large one alone"),
        pytest.param([slot(0, 1), slot(1, 1, "cuda"), slot(2, 1)], [[0], [1], [2]], id="devices apart"),
        pytest.param([slot(0, 25), slot(1, 0)], [[0, 1]], id="an empty one takes no room"),
    ],
)
def test_tensors_travel_in_parcels(slots: list[skeletons.Slot], chunks: list[list[int]]) -> None:
    assert [[one.index for one in chunk] for chunk in skeletons.pack(slots, limit=100)] == chunks


def one(seed: int = 0, count: int = 5000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def changed(kind: str) -> torch.Tensor:
    tensor = one()
    if kind == "one bit":
        tensor.view(torch.int32)[4321] ^= 1
    elif kind == "two signs":
        tensor[[3, 4001]] *= -1
    elif kind == "two swapped":
        tensor[[5, 4500]] = tensor[[4500, 5]]
    elif kind == "the tail":
        tensor[-1] += 1
    elif kind == "longer":
        tensor = torch.cat([tensor, torch.zeros(2)])
    return tensor


def test_equal_tensors_have_equal_digests() -> None:
    assert (
        skeletons.digest(one())
        == skeletons.digest(one().view(50, 100))
        == skeletons.digest(torch.cat([one(1), one()])[5000:])
    )
    assert skeletons.digest(torch.cat([torch.zeros(1), one(count=99)])[1:]) == skeletons.digest(one(count=99)), (
        "unaligned"
    )


@pytest.mark.parametrize("kind", ["one bit", "two signs", "two swapped", "the tail", "longer"])
def test_a_digest_sees(kind: str) -> None:
    assert skeletons.digest(changed(kind)) != skeletons.digest(one())


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"lr": 0.1, "steps": [1, 2], "to": torch.float32}, True),
        ({"lr": 0.2, "steps": [1, 2], "to": torch.float32}, False),
        ({"lr": 0.1, "steps": [1, 3], "to": torch.float32}, False),
        ({"lr": 0.1, "steps": [1, 2]}, False),
    ],
)
def test_plain_data_count_too(other: dict[str, object], same: bool) -> None:
    mine = {"lr": 0.1, "steps": [1, 2], "to": torch.float32}
    digests = [transfer.digest_inventory(transfer.take_inventory({"scheduler": state})) for state in (mine, other)]
    assert (digests[0] == digests[1]) is same


def test_what_cannot_be_sent_is_named_before_anything_is() -> None:
    with pytest.raises(ConfigurationError, match=r"extras\['seen'\]\[0\] is a set, which cannot be sent"):
        transfer.take_inventory({"model": {"w": one()}, "extras": {"seen": [{1, 2}]}})


def test_what_is_lacking() -> None:
    mine = transfer.take_inventory({"m": [one(0), one(1)]})["m"]
    theirs = transfer.take_inventory({"m": [one(0), one(2)]})["m"]
    assert transfer.find_lacks(mine, mine) == [False]
    assert transfer.find_lacks(mine, theirs) == [True], "small ones are one chunk"
    assert transfer.find_lacks(None, theirs) == [True]
    assert transfer.find_lacks(transfer.take_inventory({"m": [one(0)]})["m"], theirs) == [True]


@pytest.mark.parametrize(
    ("sizes", "lacks", "routes"),
    [
        pytest.param([8], ["0", "0"], [None], id="nothing is lacking"),
        pytest.param([8], ["0", "1"], [(0, 1, ())], id="one has it and one lacks it"),
        pytest.param([0], ["0", "1"], [None], id="nothing to send"),
        pytest.param([8, 8, 8, 8], ["0000", "0000", "1111"],
                     [(0, 2, ()), (1, 2, ()), (0, 2, ()), (1, 2, ())], id="holders share the work"),
        pytest.param([8, 8], ["00", "11", "11"], [(0, 1, (2,)), (0, 2, (1,))], id="those that got it share it too"),
        pytest.param([4, 9, 5], ["000", "000", "111"], [(1, 2, ()), (0, 2, ()), (1, 2, ())], id="the largest first"),
        pytest.param([8, 8], ["00", "01", "11"], [(0, 2, ()), (0, 1, (2,))], id="one that has a part sends it"),
    ],
)  # fmt: skip
def test_chunks_travel_from_those_that_have_sent_least(
    sizes: list[int], lacks: list[str], routes: list[tuple[int, int, tuple[int, ...]] | None]
) -> None:
    table = [[one == "1" for one in row] for row in lacks]
    nodes = range(len(table))
    assert transfer.plan_routes(sizes, table, nodes) == [
        None if one is None else transfer.Route(*one) for one in routes
    ]


@pytest.mark.parametrize(("holders", "lackers"), [(1, 1), (1, 7), (2, 6), (4, 4), (7, 1)])
def test_no_rank_sends_much_more_than_the_state(holders: int, lackers: int) -> None:
    """A broadcast from one rank takes as many times the state as there are levels in its tree."""
    table = [[False] * 64] * holders + [[True] * 64] * lackers
    load = [0] * (holders + lackers)
    for route in transfer.plan_routes([1] * 64, table, range(len(table))):
        assert route is not None
        load[route.holder] += 1
        load[route.first] += len(route.others)
        assert {route.first, *route.others} == set(range(holders, holders + lackers))
    assert max(load[:holders]) == -(-64 // holders)
    assert max(load) <= 64


@pytest.mark.parametrize(
    ("nodes", "lacking", "holders"),
    [
        pytest.param([1, 2, 2], {2}, {1}, id="the-one-of-the-same-node-sends-all"),
        pytest.param([1, 1, 2], {2}, {0, 1}, id="nobody-is-near"),
        pytest.param([1, 2, 1, 2], {2, 3}, {0, 1}, id="each-node-has-one"),
        pytest.param([1, 1, 2, 2], {2, 3}, {0, 1}, id="a-new-node"),
    ],
)
def test_chunks_come_from_the_same_node(nodes: list[int], lacking: set[int], holders: set[int]) -> None:
    routes = transfer.plan_routes([1 << 20] * 8, [[rank in lacking] * 8 for rank in range(len(nodes))], nodes)
    assert {route.holder for route in routes if route is not None} == holders
    between = [nodes[route.holder] != nodes[route.first] for route in routes if route is not None]
    is_new = not {nodes[rank] for rank in lacking} <= {nodes[rank] for rank in holders}
    assert all(between) if is_new else not any(between)


@pytest.fixture(scope="module", params=["host", "device"])
def gang(request: pytest.FixtureRequest) -> list[Member]:
    return run_gang(PROGRAMS / "transfer_program.py", 3, request.param)


def test_all_get_the_state_that_counts(gang: list[Member]) -> None:
    is_host = gang[0].results["kind"] == "host"
    for member in gang:
        assert member.results[f"{member.rank} equal"]
        assert member.results["same digest"] and member.results["nothing is sent"]
        assert member.results["chunks"] == ([1, 1, 1, 0] if is_host else [1, 1, 2, 0]), "numbers stay on the host"


def test_what_all_have_is_not_sent(gang: list[Member]) -> None:
    assert [member.results[f"{member.rank} bytes"] for member in gang] == [0, 0, 0], "8 MB of frozen weights"


def test_a_newcomer_receives_in_place_and_others_keep_what_they_have(gang: list[Member]) -> None:
    newcomer, source, behind = gang
    assert newcomer.results["0 in place"] and not newcomer.results["0 untouched"]
    assert source.results["1 untouched"]
    assert behind.results["2 untouched"] and not behind.results["2 in place"]


def test_ranks_that_have_the_state_share_the_sending(gang: list[Member]) -> None:
    assert all(member.results["complete"] for member in gang)
    is_host = gang[0].results["kind"] == "host"
    assert [member.results["shared"] for member in gang] == ([0, 2, 2] if is_host else [4, 4, 4]), "a ring of all"


def test_what_arrives_damaged_is_no_state_on_any_rank(gang: list[Member]) -> None:
    """A rank that has got it knows nothing of it by itself: an abort of a device is no error, either."""
    found = [member.results["damaged"] for member in gang]
    assert found == ["the state has not arrived as it was sent, at rank 0"] * 3
