"""A rank's part of a sharded model: how it is cut and packed."""

from __future__ import annotations

import pytest
import torch

from elasticjob.sessions.sharded.parts import Parcel, count_shards


@pytest.mark.parametrize(
    ("world_size", "shards", "cut"),
    [
        (1, None, 1), (6, None, 6), (4, 2, 2), (3, 2, 3), (5, 2, 5), (6, 2, 2), (6, 4, 6), (9, 2, 3), (1, 2, 1),
        (4, 1, 1),
    ],
)  # fmt: skip
def test_a_model_is_cut_over_as_few_ranks_as_the_world_allows(world_size: int, shards: int | None, cut: int) -> None:
    assert count_shards(world_size, shards) == cut


def test_a_part_travels_in_one_piece() -> None:
    part = {"state": {0: {"a": torch.arange(5), "b": torch.ones(2, 3, dtype=torch.bfloat16)}}, "lr": 0.1, "none": None}
    parcel = Parcel.pack(part)
    found = Parcel(parcel.text, parcel.data.clone()).unpack()
    assert found["state"][0]["b"].dtype == torch.bfloat16
    assert torch.equal(found["state"][0]["a"], part["state"][0]["a"])  # type: ignore[index]
    assert torch.equal(found["state"][0]["b"], part["state"][0]["b"])  # type: ignore[index]
    assert found["lr"] == 0.1
    assert found["none"] is None
    part["state"][0]["a"] += 1  # type: ignore[index]
    assert found["state"][0]["a"][0] == 0, "a copy"
    assert Parcel.pack(part, parcel.data).data is parcel.data, "the memory is used again"
