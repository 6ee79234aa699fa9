"""A gang of two: rank 0 ends by a bug while a collective of its own is pending, which rank 1 enters only after that."""

from __future__ import annotations

import fcntl
import sys
import time
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

import elasticjob
from worker.programs.saying import say

where, path = sys.argv[1], Path(sys.argv[2])


def begin(world: elasticjob.World) -> dist.Work | None:
    """Returns what waits for rank 1."""
    group = world.subgroup([0, 1]) if where == "subgroup" else None
    if world.is_first:
        dist.barrier()
        return cast(dist.Work, dist.all_reduce(torch.ones(3), async_op=True, group=group))
    dist.barrier()
    deadline = time.monotonic() + 20
    with path.open("a") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            else:
                say("has ended", True)
                return None
    say("has ended", False)
    return None


lock = path.open("a")  # until this process ends
world = elasticjob.init(backend="gloo", timeout=300)
if world.is_first:
    fcntl.flock(lock, fcntl.LOCK_EX)
else:
    lock.close()
if where == "exit":
    work = begin(world)
    raise ValueError("a bug")
with world:
    work = begin(world)
    raise ValueError("a bug")
