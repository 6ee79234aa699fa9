"""Copies of a rank's part are kept in a pod on another node, and every rank keeps one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.context.buddies import find_keepers, number_node


@pytest.mark.parametrize(
    ("nodes", "per_pod", "keepers"),
    [
        pytest.param([1, 2, 3], 1, [1, 2, 0], id="pods-of-one"),
        pytest.param([1, 1, 2, 2], 2, [2, 3, 0, 1], id="pods-of-two"),
        pytest.param([1, 1], 2, [0, 1], id="one-pod"),
        pytest.param([1], 1, [0], id="alone"),
        pytest.param([1, 1, 2, 2, 3], 2, [0, 1, 2, 3, 4], id="pods-of-different-sizes"),
        pytest.param([1, 1, 2, 2], 1, [2, 3, 0, 1], id="two-pods-of-a-node"),
        pytest.param([1, 2, 1, 2], 1, [1, 0, 3, 2], id="two-nodes-in-turn"),
        pytest.param([1, 1, 1, 1, 2, 2, 2, 2], 2, [4, 5, 6, 7, 0, 1, 2, 3], id="two-pods-of-two-on-each-node"),
        pytest.param([1, 1, 1], 1, [1, 2, 0], id="one-node"),
        pytest.param([1, 1, 1, 2], 1, [3, 0, 1, 2], id="one-node-has-most"),
    ],
)
def test_a_copy_is_in_another_pod(nodes: list[int], per_pod: int, keepers: list[int]) -> None:
    assert list(find_keepers(nodes, per_pod)) == keepers


@given(places=st.lists(st.integers(0, 4), min_size=2, max_size=24), per_pod=st.integers(1, 3))
def test_the_loss_of_a_node_leaves_a_copy_of_each_part(places: list[int], per_pod: int) -> None:
    nodes = [place for place in places for _ in range(per_pod)]
    keepers = find_keepers(nodes, per_pod)
    assert sorted(keepers) == list(range(len(nodes))), "each rank keeps one copy"
    assert all(keeper // per_pod != rank // per_pod for rank, keeper in enumerate(keepers))
    assert all(keeper % per_pod == rank % per_pod for rank, keeper in enumerate(keepers))
    if 2 * max(Counter(places).values()) <= len(places):
        assert all(nodes[keeper] != nodes[rank] for rank, keeper in enumerate(keepers))


def test_pods_of_which_no_node_is_known_are_on_nodes_of_their_own() -> None:
    on_a, on_b = {"ELASTICJOB_NODE_NAME": "a"}, {"ELASTICJOB_NODE_NAME": "b"}
    assert number_node(on_a, 0) == number_node(on_a, 1) != number_node(on_b, 0)
    assert len({number_node({}, pod) for pod in range(3)} | {number_node(on_a, 0)}) == 4
