"""A digest depends on the value and the position of each word: nothing can change places unnoticed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob.collectives import skeletons
from elasticjob.sessions import transfer


def numbers(seed: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


@pytest.mark.parametrize("rows", [1, 4, 32, 33, 200])
@pytest.mark.parametrize("columns", [1, 2, 64, 1024])
def test_the_order_of_a_table_counts(rows: int, columns: int) -> None:
    table = numbers(1, rows * columns).view(rows, columns)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(2))
    if torch.equal(table, table[order]):
        return
    assert skeletons.digest(table) != skeletons.digest(table[order])


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(2, 20_000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_words_that_change_places_change_the_digest(
    count: int, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    tensor = numbers(seed, count, dtype)
    span = data.draw(st.integers(1, min(64, count // 2)))
    first = data.draw(st.integers(0, count - 2 * span))
    second = data.draw(st.integers(first + span, count - span))
    other = tensor.clone()
    other[first : first + span], other[second : second + span] = (
        tensor[second : second + span],
        tensor[first : first + span],
    )
    assert torch.equal(other, tensor) == (skeletons.digest(other) == skeletons.digest(tensor))


@pytest.mark.parametrize("kind", ["permutation", "one hot", "signs", "sign bits of words", "halves of words"])
def test_tables_of_few_values_in_another_order(kind: str) -> None:
    """Their words differ in a few of the highest bits only, or have equal sums by row and by column."""
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(3))
    tables = {
        "permutation": torch.arange(1024),
        "one hot": torch.eye(1024),
        "signs": numbers(4, 1024).sign().repeat_interleave(2).view(1024, 2),
        "sign bits of words": (torch.arange(1024) % 2) << 63,
        "halves of words": torch.stack([numbers(4, 1024).sign(), -numbers(4, 1024).sign()], 1),
    }
    table = tables[kind]
    swaps = [order]
    for i, j in [(0, 1), (2, 3), (5, 512), (0, 1023), (100, 101)]:
        one = torch.arange(1024)
        one[i], one[j] = j, i
        swaps.append(one)
    for other in (table[swap] for swap in swaps):
        assert torch.equal(table, other) == (skeletons.digest(table) == skeletons.digest(other))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 5000), bit=st.integers(0, 7), data=st.data())
def test_each_bit_counts(count: int, bit: int, data: st.DataObject) -> None:
    raw = numbers(5, count, torch.uint8)
    other = raw.clone()
    other[data.draw(st.integers(0, count - 1))] ^= 1 << bit
    assert skeletons.digest(other) != skeletons.digest(raw)


def test_all_pairs_of_a_row_can_be_told_apart() -> None:
    """The highest bit of two words changes places: the smallest change that there is."""
    seen = set()
    for place in range(3000):
        words = torch.zeros(3000, dtype=torch.int64)
        words[place] = -(1 << 63)
        seen.add(skeletons.digest(words))
    assert len(seen) == 3000


@pytest.mark.parametrize("count", [1 << 18, (1 << 18) + 5, (3 << 18) + 1024, 1 << 20])
def test_pieces_of_a_large_tensor_have_an_order(count: int) -> None:
    words = torch.arange(count)
    piece = 1 << 18
    assert skeletons.digest(words) == skeletons.digest(torch.cat([words[:7], words[7:]]))
    if count >= 2 * piece:
        other = torch.cat([words[piece : 2 * piece], words[:piece], words[2 * piece :]])
        assert skeletons.digest(other) != skeletons.digest(words)


def test_tensors_that_change_places_change_the_digest_of_a_state() -> None:
    one, two = numbers(6, 256), numbers(7, 256)
    digests = [
        transfer.digest_inventory(transfer.take_inventory({"model": {"a": a, "b": b}}))
        for a, b in ((one, two), (two, one))
    ]
    assert digests[0] != digests[1]


def test_a_table_in_another_order_is_lacking() -> None:
    """So it is sent to a joiner whose process has built it in another order."""
    table = numbers(8, 32 * 64).view(32, 64)
    mine = transfer.take_inventory({"model": {"labels": table.flip(0)}})["model"]
    theirs = transfer.take_inventory({"model": {"labels": table}})["model"]
    assert transfer.find_lacks(mine, theirs) == [True]


def test_all_devices_compute_the_same_sums() -> None:
    rows, weights = torch.randint(-(1 << 62), 1 << 62, (8, 1024)), torch.randint(-(1 << 62), 1 << 62, (1024,))
    assert torch.equal(rows @ weights, (rows * weights).sum(1)), "both wrap around"
