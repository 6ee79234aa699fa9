"""torchdata's StatefulDataLoader in place of torch's DataLoader. It runs where torchdata is installed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from elasticjob.data.samplers import ElasticDistributedSampler

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


class Noise(Dataset[list[float]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, item: int) -> list[float]:
        return [item, random.random(), torch.rand(()).item()]


def load(kind: Any, workers: int, used: int = 0, passes: int | None = None) -> list[Any]:
    """The passes from a position, with a number that the training draws in each."""
    sampler = ElasticDistributedSampler(40, global_batch_size=8, virtual_ranks=4, rank=0, world_size=1)
    sampler.load_state_dict({**sampler.state_dict(), "used": used})
    loader = kind(Noise(), batch_sampler=sampler, num_workers=workers, collate_fn=list)
    pairs = itertools.islice(sampler.steps(loader), passes)
    return [(micro, batch, torch.rand(()).item()) for micro, batch in pairs]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_gives_the_same_batches_from_any_position(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole = load(stateful, workers)
    assert whole == load(DataLoader, workers)
    assert load(stateful, workers, passes=8) + load(stateful, workers, used=16) == whole
