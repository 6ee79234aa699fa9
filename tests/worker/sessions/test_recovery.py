"""From which step and whose memory a new world continues, and how a state is sent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.collectives import skeletons
from elasticjob.sessions import recovery
from elasticjob.sessions.recovery import Piece, RecoveryPlan, ShardInventory, StateLostError, plan_recovery


def rank_state(step: int, clean: bool = True, digest: int = 0) -> recovery.RankState:
    return recovery.RankState(step, clean, digest)


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
        pytest.param([rank_state(-1), rank_state(-1), rank_state(0, digest=1)], 2, id="one that has trained once"),
        pytest.param([rank_state(-1, clean=False), rank_state(-1)], 1, id="not one that got a part of nothing"),
        pytest.param([rank_state(-1, clean=False), rank_state(5)], 1, id="not one that got a part of a state"),
    ],
)
def test_whose_state_counts(rank_states: list[recovery.RankState], source: int) -> None:
    assert recovery.choose_source(rank_states) == source


@pytest.mark.parametrize(
    "rank_states",
    [
        pytest.param([rank_state(3, clean=False)], id="alone"),
        pytest.param([rank_state(-1), rank_state(3, clean=False)], id="initial weights are no state of training"),
        pytest.param([rank_state(-1), rank_state(-1), rank_state(0, clean=False)], id="nor if most have them"),
        pytest.param([rank_state(-1, clean=False), rank_state(-1, clean=False)], id="two that got parts"),
    ],
)
def test_when_no_state_is_whole_it_is_lost(rank_states: list[recovery.RankState]) -> None:
    with pytest.raises(recovery.StateLostError):
        recovery.choose_source(rank_states)


@pytest.mark.parametrize(
    ("epochs", "epoch"),
    [
        pytest.param([-1, -1], -1, id="a fresh start"),
        pytest.param([3, 3], 3, id="all are in one"),
        pytest.param([-1, 3], 3, id="a joiner goes to the others"),
        pytest.param([4, -1, 3], 4, id="some have gone on"),
    ],
)
def test_in_which_epoch_a_world_goes_on(epochs: list[int], epoch: int) -> None:
    for rank, own in enumerate(epochs):
        if own in (-1, epoch):
            assert recovery.choose_epoch(epochs, rank) == epoch
        else:
            with pytest.raises(recovery.LeftBehindError, match="from epoch 3 to 4"):
                recovery.choose_epoch(epochs, rank)


@given(
    st.lists(
        st.builds(recovery.RankState, step=st.integers(-1, 3), clean=st.booleans(), digest=st.integers(0, 2)),
        min_size=1,
        max_size=6,
    )
)
def test_the_source_is_complete_and_the_most_advanced(rank_states: list[recovery.RankState]) -> None:
    usable = [one for one in rank_states if one.clean]
    try:
        source = rank_states[recovery.choose_source(rank_states)]
    except StateLostError:
        trained = [one.step for one in rank_states if one.step >= 0]
        assert not usable or (trained and all(one.step < 0 for one in usable))
        return
    assert source.clean and source.step == max(one.step for one in usable)
    assert source.step >= 0 or all(one.step < 0 for one in rank_states)


def test_a_state_travels_in_two_parts() -> None:
    import torch

    value = {"a": torch.arange(3), "b": [{"c": torch.ones(2, 2)}, 5, "x"], "t": (torch.tensor(1.5), None)}
    tensors: list[torch.Tensor] = []
    skeleton = skeletons.split(value, tensors)
    assert [slot.index for slot in skeletons.find_slots(skeleton)] == [0, 1, 2]
    back = skeletons.join(skeleton, tensors)
    assert torch.equal(back["b"][0]["c"], torch.ones(2, 2))
    assert back["t"][1] is None


# --- sharded models -----------------------------------------------------------------------------------------


def shard(step: int, index: int, *more: tuple[int, int], world: int = 3, **changes: Any) -> ShardInventory:
    """A rank of a world of two shards that has its own shard after its last step, and others."""
    return ShardInventory(step, held=tuple(Piece(at, world, 2, one) for at, one in ((step, index), *more)), **changes)


def of_three(step: int, *held: tuple[int, int], **changes: Any) -> ShardInventory:
    """A rank of a world of three shards that has these, by step, and all else of steps 4 and 6."""
    return ShardInventory(step, placed=(4, 6), held=tuple(Piece(at, 3, 3, index) for at, index in held), **changes)


def whole(step: int, **changes: Any) -> ShardInventory:
    """A rank that has the whole model, gathered in world 3."""
    return ShardInventory(step, held=(Piece(step, 3, 1, 0),), **changes)


FIRST, SECOND = shard(7, 0), shard(7, 1)
WHOLE, NEWCOMER = whole(7), ShardInventory()


@pytest.mark.parametrize(
    ("shard_inventories", "found"),
    [
        pytest.param([NEWCOMER, NEWCOMER], RecoveryPlan(-1), id="nobody has trained"),
        pytest.param([WHOLE, NEWCOMER, WHOLE], RecoveryPlan(7, 3, ((0, 2),)), id="two have the whole"),
        pytest.param(
            [ShardInventory(7), NEWCOMER, WHOLE], RecoveryPlan(7, 3, ((2,),)), id="one of a pod keeps it for the others"
        ),
        pytest.param([FIRST, SECOND, FIRST], RecoveryPlan(7, 3, ((0, 2), (1,))), id="one copy is whole"),
        pytest.param([NEWCOMER, SECOND, FIRST], RecoveryPlan(7, 3, ((2,), (1,))), id="in any order"),
        pytest.param([FIRST, WHOLE], RecoveryPlan(7, 3, ((1,),)), id="the whole is better than one of its shards"),
        pytest.param(
            [FIRST, shard(6, 1, (7, 1))],
            RecoveryPlan(7, 3, ((0,), (1,))),
            id="another has applied what this one could",
        ),
        pytest.param(
            [shard(6, 0), SECOND, shard(6, 1)], RecoveryPlan(6, 3, ((0,), (2,))), id="the step before is whole"
        ),
        pytest.param(
            [shard(7, 0, (8, 0)), shard(7, 1, (8, 1))],
            RecoveryPlan(7, 3, ((0,), (1,))),
            id="nobody has ended the next",
        ),
        pytest.param([whole(6), FIRST], RecoveryPlan(6, 3, ((0,),)), id="an older whole instead of newer parts"),
        pytest.param(
            [shard(7, 0, world=4), SECOND, whole(5)], RecoveryPlan(5, 3, ((2,),)), id="cut in different worlds"
        ),
        pytest.param(
            [
                ShardInventory(7, held=(Piece(7, 3, 2, 0), Piece(7, 5, 3, 0))),
                ShardInventory(7, held=(Piece(7, 3, 2, 1), Piece(7, 5, 3, 1))),
            ],
            RecoveryPlan(7, 3, ((0,), (1,))),
            id="parts of an earlier world, as one of the later is gone",
        ),
        # Rank 1 of three is lost; ranks 0 and 2 trained until step 7, and have copies of steps 4 and 6.
        pytest.param(
            [
                of_three(7, (4, 0), (4, 2), (6, 0), (6, 2)),
                of_three(7, (4, 2), (4, 1), (6, 2), (6, 1)),
                NEWCOMER,
            ],
            RecoveryPlan(6, 3, ((0,), (1,), (0, 1))),
            id="the newest copies",
        ),
        pytest.param(
            [of_three(7, (4, 0), (4, 2), (6, 0)), of_three(7, (4, 2), (4, 1), (6, 2))],
            RecoveryPlan(4, 3, ((0,), (1,), (0, 1))),
            id="the newest copies that had arrived",
        ),
        pytest.param(
            [ShardInventory(7, False, (6,), (Piece(6, 3, 2, 0), Piece(6, 3, 2, 1))), NEWCOMER],
            RecoveryPlan(6, 3, ((0,), (0,))),
            id="copies are good although a step is applied in part",
        ),
        pytest.param(
            [ShardInventory(7, placed=(5, 6), held=(Piece(5, 2, 1, 0), Piece(6, 3, 2, 0))), NEWCOMER],
            RecoveryPlan(5, 2, ((0,),)),
            id="the state in which the world began, before its first copy",
        ),
    ],
)
def test_the_latest_step_that_is_whole_counts(shard_inventories: list[ShardInventory], found: RecoveryPlan) -> None:
    assert plan_recovery(shard_inventories) == found


@pytest.mark.parametrize(
    "shard_inventories",
    [
        pytest.param([FIRST, FIRST], id="a shard is gone"),
        pytest.param([FIRST, shard(6, 1)], id="of different steps"),
        pytest.param([FIRST, shard(7, 1, world=2)], id="of different worlds"),
        pytest.param([ShardInventory(7, clean=False), NEWCOMER], id="a step that is applied in part"),
        pytest.param([ShardInventory(7, held=(Piece(6, 3, 2, 0), Piece(6, 3, 2, 1)))], id="nobody knows the position"),
        pytest.param([ShardInventory(7), ShardInventory(7)], id="who kept it for the others is gone"),
    ],
)
def test_without_a_whole_there_is_only_the_checkpoint(shard_inventories: list[ShardInventory]) -> None:
    with pytest.raises(StateLostError, match="took their shards with them"):
        plan_recovery(shard_inventories)


@given(st.integers(1, 4), st.integers(2, 4), st.randoms())
def test_a_loss_that_leaves_a_copy_of_each_shard_costs_no_step_that_was_ended(
    shards: int, copies: int, dice: random.Random
) -> None:
    """Ranks are stopped anywhere in step 5, but none has applied it before all of them could."""

    def stop(index: int, step: int, *held: int) -> ShardInventory:
        return ShardInventory(step, held=tuple(Piece(at, 1, shards, index) for at in held))

    indices = [i % shards for i in range(shards * copies)]
    if dice.random() < 0.5:  # all have their gradients
        ranks = [dice.choice((stop(i, 4, 4, 5), stop(i, 5, 5))) for i in indices]
    else:
        ranks = [dice.choice((stop(i, 4, 4), stop(i, 4, 4, 5))) for i in indices]
    left = [rank for rank in ranks if dice.random() < 0.7]
    if {rank.held[0].index for rank in left} == set(range(shards)):
        dice.shuffle(left)
        found = plan_recovery(left)
        assert found.step == max(rank.step for rank in left)
        check_holders(found, left, shards)


@given(st.integers(2, 6), st.integers(1, 3), st.randoms())
def test_a_loss_costs_no_more_than_the_steps_since_a_copy_was_complete(
    size: int, per_pod: int, dice: random.Random
) -> None:
    """Copies of step 4 are complete on all ranks, those of step 6 on some, and one pod is lost."""
    ranks = []
    for rank in range(size * per_pod):
        source = (rank - per_pod) % (size * per_pod)
        told = [(4, rank), (4, source), (6, rank), *([(6, source)] if dice.random() < 0.8 else [])]
        held = tuple(Piece(at, 1, size * per_pod, index) for at, index in told)
        ranks.append(ShardInventory(dice.choice((6, 7)), placed=(4, 6), held=held))
    lost = dice.randrange(size)
    left = [one for rank, one in enumerate(ranks) if rank // per_pod != lost]
    found = plan_recovery(left)
    check_holders(found, left, size * per_pod)
    heirs = range(size * per_pod)[(lost + 1) % size * per_pod :][:per_pod]
    arrived = all(Piece(6, 1, len(ranks), (rank - per_pod) % len(ranks)) in ranks[rank].held for rank in heirs)
    assert found.step == (6 if arrived else 4)


def check_holders(found: RecoveryPlan, ranks: list[ShardInventory], parts: int) -> None:
    """Each part has holders, and they have it."""
    assert len(found.holders) == parts
    for index, having in enumerate(found.holders):
        assert having
        assert all(found.find_piece(index) in ranks[rank].held for rank in having)


PIECES = st.builds(Piece, st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 9))


@given(st.lists(st.integers(0, 9), max_size=2), st.lists(PIECES, max_size=8, unique=True))
def test_inventories_travel_as_numbers(placed: list[int], held: list[Piece]) -> None:
    one = ShardInventory(3, False, tuple(placed), tuple(held))
    back = ShardInventory.from_row(one.to_row())
    assert (back.step, back.clean, back.placed, set(back.held)) == (3, False, one.placed, set(held))
    assert len(one.to_row()) == len(NEWCOMER.to_row())
