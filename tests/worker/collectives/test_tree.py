"""The fixed tree: the association of a sum is the same however its leaves are divided over ranks. No processes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob.collectives import tree
from elasticjob.data.virtual_plan import Place


def write(left: str, right: str) -> str:
    return f"({left}+{right})"


def add_all(leaves: int, cuts: list[int]) -> str:
    """The sum as text, if ranks with the leaves between these cuts add what they can, and one adds the rest."""
    total: tree.TreeSum[str] = tree.TreeSum(leaves, write)
    edges = [0, *sorted(cut % (leaves + 1) for cut in cuts), leaves]
    for start, stop in itertools.pairwise(edges):
        rank: tree.TreeSum[str] = tree.TreeSum(leaves, write)
        for leaf in range(start, stop):
            rank.push(str(leaf), (0, leaf))
        assert [position for position, _ in rank.nodes] == tree.find_nodes(leaves, start, stop)
        for position, value in rank.nodes:
            total.push(value, position)
    return total.total()


@given(leaves=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_association_does_not_depend_on_the_ranks(leaves: int, cuts: list[int]) -> None:
    assert add_all(leaves, cuts) == add_all(leaves, [])


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
    ],
)
def test_the_tree(leaves: int, expected: str) -> None:
    assert add_all(leaves, [1, 5]) == expected


def test_aligned_ranks_have_one_node_each() -> None:
    for size in (1, 2, 4, 8):
        assert [len(tree.find_nodes(8, *span)) for span in Place(8, 0, size).spans(1)] == [1] * size
    assert [len(tree.find_nodes(8, *span)) for span in Place(8, 0, 3).spans(1)] == [2, 2, 1]


def test_received_nodes_are_added_in_the_order_of_the_tree() -> None:
    leaves = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0, 3.0)]
    expected = ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) + leaves[4]
    for spans in ([(0, 5)], [(0, 2), (2, 5)], [(0, 1), (1, 3), (3, 5)], [(0, 3), (3, 3), (3, 5)]):
        rows = []
        for start, stop in spans:
            rank: tree.TreeSum[torch.Tensor] = tree.TreeSum(5, tree.add_tensors)
            for leaf in range(start, stop):
                rank.push(leaves[leaf].clone(), (0, leaf))
            rows += [value for _, value in rank.nodes]
        assert torch.equal(tree.add_received(torch.stack(rows), spans, 5), expected), spans


def test_buckets_hold_one_type_and_a_limited_size() -> None:
    tensors = [torch.zeros(4), torch.zeros(4, dtype=torch.float64), torch.zeros(4), torch.zeros(9), torch.zeros(1)]
    assert tree.make_buckets(tensors, limit=32) == [[0, 2], [1], [3], [4]]
    assert tree.make_buckets([], limit=32) == []


def test_packing_and_back() -> None:
    shapes = [torch.zeros(2, 3), torch.zeros(4)]
    flat = tree.pack([None, torch.arange(4.0)], shapes, multiple=8)
    assert flat.numel() == 16
    first, second = tree.unpack(flat, shapes)
    assert torch.equal(first, torch.zeros(2, 3))
    assert torch.equal(second, torch.arange(4.0))
