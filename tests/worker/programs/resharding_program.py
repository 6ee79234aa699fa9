"""Parts of a made-up model go from the ranks that have them to those that need others, over gloo.

    resharding_program.py BEFORE AFTER plain|copies

Part `i` of BEFORE is with rank `i`, and with `copies` with the next one too; rank `r` gets part `r` of AFTER. Each rank
prints which tensors differ from what they should be, and how many bytes at most came to a rank and had to.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.channel import progress
from elasticjob.sessions.recovery import RecoveryPlan
from elasticjob.sessions.sharded import parts
from elasticjob.sessions.sharded.resharding import Need, Resharding

SHAPES: dict[str, tuple[torch.Size, torch.dtype, int, int]] = {  # and the dimensions before and after
    "even": (torch.Size((120, 7)), torch.float32, 0, 0),
    "uneven": (torch.Size((11, 3)), torch.bfloat16, 0, 0),
    "short": (torch.Size((2, 5)), torch.float64, 0, 0),
    "columns": (torch.Size((6, 50)), torch.float32, 1, 1),
    "turned": (torch.Size((31, 17)), torch.int16, 0, 1),
    "whole before": (torch.Size((9, 4)), torch.float32, -1, 0),
    "whole after": (torch.Size((9, 4)), torch.float32, 0, -1),
    "flags": (torch.Size((13,)), torch.bool, 0, 0),
    "nothing": (torch.Size((0, 4)), torch.float32, 0, 0),
    "count": (torch.Size(()), torch.int64, -1, -1),
    "large": (torch.Size((4096, 300)), torch.float32, 0, 0),
}


def make(name: str) -> torch.Tensor:
    shape, dtype, *_ = SHAPES[name]
    torch.manual_seed(list(SHAPES).index(name))
    return torch.randint(0, 100, shape).to(dtype)


def cut(whole: torch.Tensor, count: int, index: int, dim: int) -> torch.Tensor:
    start, stop = parts.find_span(whole.shape[dim], count, index)
    return whole.narrow(dim, start, stop - start).clone()


def make_part(count: int, index: int) -> dict[str, Any]:
    model: dict[str, Any] = {}
    for name, (shape, _, dim, _) in SHAPES.items():
        whole = make(name)
        local = whole if dim < 0 else cut(whole, count, index, dim)
        model[name] = local if dim < 0 else {"elasticjob.shard": local, "dim": dim, "length": shape[dim]}
    model["running"] = torch.full((100,), float(dist.get_rank()))  # a buffer, which differs by rank
    return {"model": model, "optimizer": {"param_groups": [{"lr": 0.1}], "state": {}}, "trainable": ["even"]}


def count_moved(rank: int, before: int, after: int, held: dict[int, Any]) -> int:
    """The bytes of what a rank needs and does not have."""
    moved = 0
    for shape, dtype, old, new in SHAPES.values():
        have, need = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        for index in held:
            whole = (0, shape[old]) if old >= 0 else (0, 0)
            start, stop = parts.find_span(shape[old], before, index) if old >= 0 else whole
            (have if old < 0 else have.narrow(old, start, stop - start)).fill_(True)
        if rank < after:
            start, stop = parts.find_span(shape[new], after, rank) if new >= 0 else (0, 0)
            (need if new < 0 else need.narrow(new, start, stop - start)).fill_(True)
        moved += int((need & ~have).sum()) * dtype.itemsize
    return moved


before, after = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
has_copies = sys.argv[3] == "copies" and size > 1
holders = tuple(tuple(sorted((i, (i + 1) % size))) if has_copies else (i,) for i in range(before))
held = {index: make_part(before, index) for index, having in enumerate(holders) if rank in having}
resharding = Resharding(RecoveryPlan(7, 3, holders), held, dist.group.WORLD)
names = [path[1] for path in resharding.leaves]
needs, wanted = [], {}
for name in names:
    if name == "running":
        needs.append(Need())
        continue
    shape, dim = SHAPES[name][0], SHAPES[name][3]
    whole = make(name)
    if rank >= after:
        needs.append(Need(0, 0, 0) if shape else Need())
        wanted[name] = whole.narrow(0, 0, 0) if shape else whole
    elif dim < 0:
        needs.append(Need())
        wanted[name] = whole
    else:
        needs.append(Need(dim, *parts.find_span(shape[dim], after, rank)))
        wanted[name] = cut(whole, after, rank, dim)
received = dict(zip(resharding.leaves, resharding.run(needs), strict=True))
state = {name: resharding.fill(name, received.__getitem__) for name in ("model", "optimizer", "trainable")}
differs = [name for name, one in wanted.items() if not torch.equal(state["model"][name], one)]
differs += [] if float(state["model"]["running"][0]) in (0.0, 1.0) else ["running"]
differs += (
    [] if state["trainable"] == ["even"] and state["optimizer"]["param_groups"] == [{"lr": 0.1}] else ["plain data"]
)
moved = [torch.tensor([0]) for _ in range(size)]
dist.all_gather(moved, torch.tensor([count_moved(rank, before, after, held)]))
for check, result in {
    "differs": differs,
    "received": progress.transfer.most_bytes,
    "moved": max(int(one.item()) for one in moved),
}.items():
    print(json.dumps({"check": check, "result": result}), flush=True)
dist.destroy_process_group()
