"""Gathering: into one tensor, into a list, to one rank, and tensors whose shapes differ by rank.

`all_gather_into_tensor(output, input)` wants an output as long as all inputs together: concatenated, `[n*a, b]`, or
stacked, `[n, a, b]`. NCCL takes both forms, gloo only the first, of which the second is a view. It cannot gather inputs
of different shapes; `elasticjob.all_gather_unequal` can.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
import torch.distributed as dist

import elasticjob


def gather_into(output: torch.Tensor, source: torch.Tensor, async_op: bool = False) -> Any:
    """torch 2.13 renamed the function and warns about the old name, which is the one that all versions have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return dist.all_gather_into_tensor(output, source, async_op=async_op)


def main() -> None:
    with elasticjob.init(threads=1) as world:
        n, device = world.world_size, world.device
        mine = torch.full((2, 3), float(world.rank), device=device)

        concatenated = torch.empty(2 * n, 3, device=device)
        gather_into(concatenated, mine)
        stacked = torch.empty(n, 2, 3, device=device)
        work = gather_into(stacked.flatten(0, 1), mine, async_op=True)  # a view: the numbers land in `stacked`
        work.wait()  # before this, `stacked` says nothing

        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine)
        at_first = [torch.empty_like(mine) for _ in range(n)] if world.rank == 0 else None
        dist.gather(mine, at_first, dst=0)

        rows = torch.full((world.rank + 1, 2), float(world.rank), device=device)
        unequal = elasticjob.all_gather_unequal(rows)
        facts = {
            "rank": world.rank,
            "concatenated": concatenated[:, 0].tolist(),
            "stacked": stacked[:, 0, 0].tolist(),
            "list": [part[0, 0].item() for part in parts],
            "gather": None if at_first is None else [part[0, 0].item() for part in at_first],
            "unequal": [list(part.shape) for part in unequal],
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
