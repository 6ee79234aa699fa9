"""Processes, groups, point to point, and who gets what from all_reduce.

- `send`/`recv` return when the buffer may be used again. `isend`/`irecv` return at once: the buffer is untouchable
  until `wait()`.
- `new_group` is called by every rank, also by those that are not in the group.
- After `all_reduce` every rank has the result, in the tensor it gave.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

import elasticjob

OPERATIONS = {
    "SUM": dist.ReduceOp.SUM,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "MAX": dist.ReduceOp.MAX,
    "MIN": dist.ReduceOp.MIN,
}


def pass_on(world: elasticjob.World) -> float:
    """Blocking: rank 0 sends, each rank adds one and sends it on; the last one knows how many there are."""
    token = torch.ones(1, device=world.device)
    if world.rank > 0:
        dist.recv(token, src=world.rank - 1)
        token += 1
    if world.rank < world.world_size - 1:
        dist.send(token, dst=world.rank + 1)
    return token.item()


def exchange(world: elasticjob.World) -> float:
    """Not blocking: everybody sends to the next one and receives from the one before, at the same time."""
    given = torch.full((1,), float(world.rank), device=world.device)
    taken = torch.empty(1, device=world.device)
    operations = [
        dist.P2POp(dist.isend, given, (world.rank + 1) % world.world_size),
        dist.P2POp(dist.irecv, taken, (world.rank - 1) % world.world_size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()  # before this, `given` must not change and `taken` says nothing
    return taken.item()


def main() -> None:
    with elasticjob.init(threads=1) as world:
        facts: dict[str, object] = {"rank": world.rank, "worldSize": world.world_size, "token": pass_on(world)}
        facts["fromBefore"] = exchange(world) if world.world_size > 1 else 0.0
        for name, operation in OPERATIONS.items():
            tensor = torch.tensor([world.rank + 1.0], device=world.device)
            dist.all_reduce(tensor, op=operation)
            facts[name] = tensor.item()
        even = world.subgroup([rank for rank in range(world.world_size) if rank % 2 == 0])
        if world.rank % 2 == 0:
            tensor = torch.ones(1, device=world.device)
            dist.all_reduce(tensor, group=even)
            facts["even"] = tensor.item()
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
