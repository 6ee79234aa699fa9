"""What each rank of a new world gets of a model that was cut for another one, and from whom."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from elasticjob.sessions.sharded import parts, resharding
from elasticjob.sessions.sharded.parts import Leaf
from elasticjob.sessions.sharded.resharding import Need
from torch_features import needs_fsdp_on_cpu
from worker.gang_helper import run_gang

PROGRAM = Path(__file__).parents[1] / "programs" / "resharding_program.py"


def cut(tensor: torch.Tensor, count: int, index: int, dim: int) -> torch.Tensor:
    """What torch gives to this rank of so many."""
    chunks = torch.chunk(tensor, count, dim)
    return chunks[index] if index < len(chunks) else tensor.narrow(dim, 0, 0)


@given(st.integers(0, 40), st.integers(1, 9))
def test_rows_are_cut_as_torch_cuts_them(length: int, count: int) -> None:
    tensor = torch.arange(length)
    for index in range(count):
        start, stop = parts.find_span(length, count, index)
        assert torch.equal(tensor[start:stop], cut(tensor, count, index, 0))


@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3)),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(-1, 2),
    st.integers(-1, 2),
)
@example((7, 1, 1), 3, 2, 0, 0)
def test_every_rank_gets_its_part_of_the_whole_once(
    shape: tuple[int, ...], before: int, after: int, old: int, new: int
) -> None:
    """Cut in any dimension before and after, or in none."""
    whole = torch.arange(math.prod(shape)).view(shape)
    leaf = Leaf(shape, whole.dtype, old)
    pieces = [whole if old < 0 else cut(whole, before, index, old) for index in range(before)]
    for rank in range(after):
        wanted = whole if new < 0 else cut(whole, after, rank, new)
        need = Need() if new < 0 else Need(new, *parts.find_span(shape[new], after, rank))
        got, times = torch.full(wanted.shape, -1), torch.zeros(wanted.shape, dtype=torch.int64)
        for one in resharding.find_slices(leaf, before, need):
            place, count, found = got, times, pieces[one.index]
            for dim, (start, length) in one.ranges.items():
                place, count = (value.narrow(dim, one.at.get(dim, 0), length) for value in (place, count))
                found = found.narrow(dim, start, length)
            place.copy_(found)
            count += 1
        assert torch.equal(got, wanted)
        assert bool((times == 1).all()), "nothing is sent twice"


@pytest.mark.parametrize(
    ("having", "rank", "nodes", "source"),
    [
        pytest.param([0, 1, 3], 3, [0, 0, 0, 0], 3, id="itself"),
        pytest.param([0, 2], 3, [0, 0, 1, 1], 2, id="one on its node"),
        pytest.param([0, 1], 3, [0, 1, 1, 2], 1, id="any, and not all the same one"),
        pytest.param([0, 1], 2, [0, 1, 2, 2], 0, id="any, and not all the same one: the other"),
    ],
)
def test_who_sends(having: list[int], rank: int, nodes: list[int], source: int) -> None:
    assert resharding.choose_source(having, rank, nodes) == source


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 12))
def test_tensors_are_sent_in_order_and_within_bounds(sizes: list[int], limit: int) -> None:
    groups = list(resharding.group_leaves(sizes, limit))
    assert [at for group in groups for at in group] == list(range(len(sizes)))
    assert all(len(group) == 1 or sum(sizes[at] for at in group) <= limit for group in groups)


@pytest.mark.parametrize(
    ("digests", "trusted"),
    [
        pytest.param([[5, 1], [5], [1, 9]], [[0, 1], [0, 2]], id="all are equal"),
        pytest.param([[5, 1], [5], [2, 9]], [[0, 1], [0]], id="one against one"),
    ],
)
def test_what_most_have_is_sent(digests: list[list[int]], trusted: list[list[int]]) -> None:
    # Rank 0 has parts 0 and 1, rank 1 part 0, rank 2 parts 1 and 2.
    assert resharding.trust([[0, 1], [0, 2], [2]], digests)[:2] == trusted


def test_of_three_the_two_that_agree_are_trusted() -> None:
    assert resharding.trust([[0, 1, 3]], [[7], [8], [], [8]]) == [[1, 3]]


@pytest.mark.timeout(200)
@needs_fsdp_on_cpu
@pytest.mark.parametrize("kinds", ["plain", "copies"])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 3), (3, 5), (2, 4), (1, 3)])
def test_real_ranks_get_their_parts(before: int, after: int, kinds: str) -> None:
    """Uneven sizes, several types, the state of an optimizer; what is received is less than what each rank has."""
    for member in run_gang(PROGRAM, max(before, after), str(before), str(after), kinds, timeout=150):
        told = member.results
        assert told["differs"] == []
        assert told["received"] <= 1.05 * told["moved"] + 4096
