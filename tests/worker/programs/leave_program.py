"""Enters a world of one process and leaves it right after a collective, so many times."""

import sys

import torch
import torch.distributed as dist

from elasticjob.torchcompat import groups

for _ in range(int(sys.argv[1])):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    work = dist.all_gather([torch.empty(1000)], torch.ones(1000), async_op=True)
    work.wait()
    del work  # gloo's thread has the last reference to the tensors
    groups.destroy_groups()
print("left")
