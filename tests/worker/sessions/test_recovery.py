"""Which rank's state is used in a new world, and how a state is sent."""

from __future__ import annotations

import pytest

from elasticjob.collectives import skeletons
from elasticjob.sessions import state


def rank_state(step: int, clean: bool = True, digest: int = 0) -> state.RankState:
    return state.RankState(step, clean, digest)


@pytest.mark.parametrize(
    ("rank_states", "source"),
    [
        pytest.param([rank_state(-1), rank_state(-1)], 0, id="a fresh start"),
        pytest.param([rank_state(7), rank_state(8), rank_state(-1)], 1, id="the most advanced"),
        pytest.param([rank_state(8), rank_state(8)], 0, id="the lowest of equals"),
        pytest.param([rank_state(8, digest=1), rank_state(8), rank_state(8)], 1, id="what most have"),
        pytest.param([rank_state(8, digest=1), rank_state(8)], 0, id="one against one"),
        pytest.param([rank_state(9, digest=1), rank_state(8), rank_state(8)], 0, id="more advanced than most"),
        pytest.param([rank_state(-1, digest=1), rank_state(-1), rank_state(-1)], 0, id="nobody has trained"),
        pytest.param([rank_state(9, clean=False), rank_state(8)], 1, id="not a step applied in part"),
    ],
)
def test_whose_state_counts(rank_states: list[state.RankState], source: int) -> None:
    assert state.choose_source(rank_states) == source


def test_when_no_state_is_whole_it_is_lost() -> None:
    with pytest.raises(state.StateLostError):
        state.choose_source([rank_state(3, clean=False)])


def test_a_state_travels_in_two_parts() -> None:
    import torch

    value = {"a": torch.arange(3), "b": [{"c": torch.ones(2, 2)}, 5, "x"], "t": (torch.tensor(1.5), None)}
    tensors: list[torch.Tensor] = []
    skeleton = skeletons.split(value, tensors)
    assert [slot.index for slot in skeletons.find_slots(skeleton)] == [0, 1, 2]
    back = skeletons.join(skeleton, tensors)
    assert torch.equal(back["b"][0]["c"], torch.ones(2, 2))
    assert back["t"][1] is None
