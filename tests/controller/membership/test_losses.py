"""Table of losses: who trains on, who waits, where the next world has the state from, and how many steps it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.context import buddies
from elasticjob_operator.api import Cut
from elasticjob_operator.membership.losses import Keeping, Loss, Source, foresee

INNER = Cut(1, 4)  # dp, pp=2, tp=2: each four neighbours are a copy
OUTER = Cut(2, 2)  # pp=2, dp, tp=2: as 0, 1, 8 and 9
PAIRS = Cut(1, 2)
DDP = Cut()
EIGHT = Cut(1, 8, 8)  # a copy in each pod of eight ranks
SIXTEEN = Cut(1, 16, 8)  # in two
UNEVEN = Cut(1, 3, 2)  # two in three pods

RESTART = Keeping(save_every=500)
SNAPSHOTS = Keeping(memory_every=1, save_every=500)
SESSION = Keeping(stays=True, save_every=500)
COPIES = Keeping(stays=True, copied=False, copy_every=1, save_every=500)  # FSDP2: all ranks together are the model
COPIES_OF_PAIRS = replace(COPIES, copied=True)


def say(loss: Loss) -> str:
    """As "whole groups/mended/given up: next world; who waits; source, steps"."""
    numbers = "/".join(",".join(map(str, one)) for one in (loss.whole, loss.mended, loss.given_up))
    return f"{numbers}: {' '.join(loss.members)}; {' '.join(loss.waiting)}; {loss.source}, {loss.steps}"


@pytest.mark.parametrize(
    ("pods", "cut", "keeping", "lost", "ready", "expected"),
    [
        pytest.param(
            *(16, INNER, SESSION, "5", ""),
            *("0,2,3//1: 0 1 2 3 8 9 10 11 12 13 14 15; 4 6 7; ranks, 0",),
            id="a loss costs its copy, and no step",
        ),
        pytest.param(
            *(16, OUTER, SESSION, "5", ""),
            *("0,1,3//2: 0 1 2 3 6 7 8 9 10 11 14 15; 4 12 13; ranks, 0",),
            id="and one whose stages are far away",
        ),
        pytest.param(
            *(16, INNER, RESTART, "5", ""),
            *("0,2,3//1: 0 1 2 3 8 9 10 11 12 13 14 15; 4 6 7; file, 500",),
            id="a script that restarts reads the file",
        ),
        pytest.param(
            *(16, INNER, SNAPSHOTS, "5", ""),
            *("0,2,3//1: 0 1 2 3 8 9 10 11 12 13 14 15; 4 6 7; file, 500",),
            id="also with snapshots: they are for as many ranks",
        ),
        pytest.param(
            *(16, INNER, SNAPSHOTS, "5", "a"),
            *("0,2,3/1/: 0 1 2 3 4 a 6 7 8 9 10 11 12 13 14 15; ; snapshots, 1",),
            id="with a spare there are",
        ),
        pytest.param(
            *(16, INNER, SNAPSHOTS, "5 6", "a b"),
            *("0,2,3/1/: 0 1 2 3 4 a b 7 8 9 10 11 12 13 14 15; ; file, 500",),
            id="but not if the pod with the copies is lost as well",
        ),
        pytest.param(
            *(16, INNER, SNAPSHOTS, "5 9", ""),
            *("0,3/1/2: 0 1 2 3 4 8 6 7 12 13 14 15; 10 11; file, 500",),
            id="of two copies one goes on",
        ),
        pytest.param(
            *(4, PAIRS, SESSION, "1 3", "a b"),
            *("/0,1/: 0 a 2 b; ; file, 500",),
            id="all that had the same shards are lost",
        ),
        pytest.param(
            *(4, PAIRS, SESSION, "1 2", ""), "/0/1: 0 3; ; ranks, 0", id="each shard is left, though no copy is"
        ),
        pytest.param(
            *(6, PAIRS, SESSION, "1 3", ""),
            *("2/0/1: 0 2 4 5; ; ranks, 0",),
            id="of two copies one goes on, and the third has its other part",
        ),
        pytest.param(*(2, PAIRS, SESSION, "1", ""), "//0: ; 0; file, 500", id="the only copy waits"),
        pytest.param(
            *(2, PAIRS, COPIES_OF_PAIRS, "1", ""), "//0: ; 0; copies, 2", id="and goes on from the other pod's copies"
        ),
        pytest.param(
            *(4, PAIRS, COPIES_OF_PAIRS, "1 3", "a b"),
            *("/0,1/: 0 a 2 b; ; file, 500",),
            id="there are none of live copies",
        ),
        pytest.param(*(3, DDP, COPIES, "1", ""), "0,2//1: 0 2; ; copies, 2", id="FSDP2, one of three"),
        pytest.param(
            *(3, DDP, replace(COPIES, copy_every=10), "1", ""), "0,2//1: 0 2; ; copies, 10", id="every ten steps"
        ),
        pytest.param(*(3, DDP, COPIES, "1 2", ""), "0//1,2: 0; ; file, 500", id="and the pod with its copies"),
        pytest.param(*(4, DDP, COPIES, "1 3", ""), "0,2//1,3: 0 2; ; copies, 2", id="and another one"),
        pytest.param(
            *(3, DDP, replace(SESSION, copied=False), "1", ""), "0,2//1: 0 2; ; file, 500", id="FSDP2 without copies"
        ),
        pytest.param(*(3, DDP, SESSION, "0 1", ""), "2//0,1: 2; ; ranks, 0", id="DDP: one is enough"),
        pytest.param(*(3, DDP, SNAPSHOTS, "0 1", ""), "2//0,1: 2; ; snapshots, 1", id="and at any number of ranks"),
        pytest.param(*(3, DDP, SESSION, "0 1 2", ""), "//0,1,2: ; ; file, 500", id="all of them"),
        pytest.param(*(3, DDP, Keeping(), "0", ""), "1,2//0: 1 2; ; nothing, None", id="a script that saves nothing"),
        pytest.param(*(4, EIGHT, SESSION, "2", ""), "0,1,3//2: 0 1 3; ; ranks, 0", id="a copy in each pod"),
        pytest.param(*(4, SIXTEEN, SESSION, "2", ""), "0//1: 0 1; 3; ranks, 0", id="a copy in two pods"),
        pytest.param(*(3, UNEVEN, SESSION, "1", ""), "//0: ; 0 2; ranks, 0", id="two copies in three pods: one waits"),
        pytest.param(
            *(3, UNEVEN, SESSION, "1 2", "a b"), "/0/: 0 a b; ; file, 500", id="and the third part is nowhere"
        ),
    ],
)
def test_what_a_loss_costs(pods: int, cut: Cut, keeping: Keeping, lost: str, ready: str, expected: str) -> None:
    world = [str(number) for number in range(pods)]
    assert say(foresee(world, lost.split(), ready.split(), cut=cut, keeping=keeping)) == expected


@pytest.mark.parametrize(
    ("keeping", "expected"),
    [
        pytest.param(SESSION, (Source.RANKS, 0), id="the other copy has the shards"),
        pytest.param(SNAPSHOTS, (Source.SNAPSHOTS, 1), id="what is in its pod stays"),
        pytest.param(RESTART, (Source.FILE, 500), id="a file"),
    ],
)
def test_a_process_is_lost_and_its_pod_stays(keeping: Keeping, expected: tuple[Source, int]) -> None:
    loss = foresee("abcd", (), cut=PAIRS, keeping=keeping, emptied="b")
    assert (loss.source, loss.steps) == expected
    assert (loss.members, loss.whole, loss.mended) == (tuple("abcd"), (1,), (0,))


def test_all_pods_stay_and_all_processes_are_lost() -> None:
    loss = foresee("abc", (), cut=DDP, keeping=replace(SNAPSHOTS, stays=True), emptied="abc")
    assert loss.source is Source.SNAPSHOTS


@given(nodes=st.lists(st.integers(0, 3), min_size=2, max_size=8), data=st.data())
def test_one_loss_never_reads_a_file_where_other_pods_have_copies(nodes: list[int], data: st.DataObject) -> None:
    world = [f"m{number}" for number in range(len(nodes))]
    keeping = replace(COPIES, keepers=buddies.find_keepers(nodes, 1))
    assert foresee(world, {data.draw(st.sampled_from(world))}, keeping=keeping).source is Source.COPIES
