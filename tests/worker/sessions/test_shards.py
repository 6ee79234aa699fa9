"""The shards that the ranks of a lost world have, and the step from which they can continue."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.sessions.shards import RecoveryPlan, ShardInventory, count_shards, plan_recovery, put_together
from elasticjob.sessions.state import StateLostError


@pytest.mark.parametrize(
    ("world_size", "shards", "cut"),
    [
        (1, None, 1), (6, None, 6), (4, 2, 2), (3, 2, 3), (5, 2, 5), (6, 2, 2), (6, 4, 6), (9, 2, 3), (1, 2, 1),
        (4, 1, 1),
    ],
)  # fmt: skip
def test_a_model_is_cut_over_as_few_ranks_as_the_world_allows(world_size: int, shards: int | None, cut: int) -> None:
    assert count_shards(world_size, shards) == cut


FIRST, SECOND = ShardInventory(7, world=3, shard=0, shards=2), ShardInventory(7, world=3, shard=1, shards=2)
WHOLE, NEWCOMER = ShardInventory(7, whole=True), ShardInventory()


@pytest.mark.parametrize(
    ("shard_inventories", "found"),
    [
        pytest.param([NEWCOMER, NEWCOMER], RecoveryPlan(-1), id="nobody has trained"),
        pytest.param([WHOLE, NEWCOMER, WHOLE], RecoveryPlan(7), id="somebody has the whole"),
        pytest.param([FIRST, SECOND, FIRST], RecoveryPlan(7, (0, 1)), id="one copy is whole"),
        pytest.param([NEWCOMER, SECOND, FIRST], RecoveryPlan(7, (2, 1)), id="in any order"),
        pytest.param([FIRST, WHOLE], RecoveryPlan(7), id="the whole is better than shards"),
        pytest.param(
            [FIRST, replace(SECOND, step=6, ahead=True)],
            RecoveryPlan(7, (0, 1)),
            id="another has applied what this one could",
        ),
        pytest.param(
            [replace(FIRST, step=6), SECOND, replace(SECOND, step=6)],
            RecoveryPlan(6, (0, 2)),
            id="the step before is whole",
        ),
        pytest.param(
            [replace(FIRST, ahead=True), replace(SECOND, ahead=True)],
            RecoveryPlan(7, (0, 1)),
            id="nobody has ended the next",
        ),
        pytest.param([replace(WHOLE, step=6), FIRST], RecoveryPlan(6), id="an older whole instead of newer parts"),
        pytest.param(
            [replace(FIRST, world=4), SECOND, replace(WHOLE, step=5)], RecoveryPlan(5), id="cut in different worlds"
        ),
    ],
)
def test_the_latest_step_that_is_whole_counts(shard_inventories: list[ShardInventory], found: RecoveryPlan) -> None:
    assert plan_recovery(shard_inventories) == found


@pytest.mark.parametrize(
    "shard_inventories",
    [
        pytest.param([FIRST, FIRST], id="a shard is gone"),
        pytest.param([FIRST, replace(SECOND, clean=False)], id="a shard is applied in part"),
        pytest.param([FIRST, replace(SECOND, step=6)], id="of different steps"),
        pytest.param([FIRST, replace(SECOND, world=2)], id="of different worlds"),
        pytest.param([replace(WHOLE, clean=False), NEWCOMER], id="a whole that is applied in part"),
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
    ranks = [ShardInventory(4, world=1, shard=i % shards, shards=shards) for i in range(shards * copies)]
    if dice.random() < 0.5:  # all have their gradients
        ranks = [dice.choice((replace(rank, ahead=True), replace(rank, step=5))) for rank in ranks]
    else:
        ranks = [dice.choice((rank, replace(rank, ahead=True))) for rank in ranks]
    left = [rank for rank in ranks if dice.random() < 0.7]
    if {rank.shard for rank in left} == set(range(shards)):
        dice.shuffle(left)
        found = plan_recovery(left)
        assert found.step == max(rank.step for rank in left)
        assert [left[source].shard for source in found.sources] == list(range(shards))
        assert all(left[i].step == found.step or left[i].ahead for i in found.sources)


def test_offers_travel_as_numbers() -> None:
    for shard_inventory in (FIRST, WHOLE, NEWCOMER, replace(SECOND, ahead=True, clean=False)):
        assert ShardInventory.from_row(shard_inventory.to_row()) == shard_inventory


def test_parts_make_a_whole() -> None:
    whole = torch.arange(12.0).view(4, 3)

    def part(rows: torch.Tensor) -> dict[str, object]:
        return {"state": [{"elasticjob.shard": rows, "dim": 0}], "step": torch.tensor(3), "lr": 0.1}

    found = put_together([part(whole[:3]), part(whole[3:])])
    assert torch.equal(found["state"][0], whole)
    assert found["step"] == 3
    assert found["lr"] == 0.1
