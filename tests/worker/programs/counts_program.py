"""Three ranks in one world after the other; in the first one, rank 0 sends its state to rank 1."""

from __future__ import annotations

import torch
import torch.distributed as dist

from elasticjob.torchcompat import groups
from worker.programs.saying import say

groups.watch_messages()
for number in range(2):
    groups.name_groups_anew()
    dist.init_process_group("gloo")
    if number == 0 and dist.get_rank() == 0:
        for _ in range(3):
            dist.send(torch.ones(4), 1)
    elif number == 0 and dist.get_rank() == 1:
        for _ in range(3):
            dist.recv(torch.zeros(4), 0)
    dist.all_reduce(torch.ones(4))
    say(f"world {number}", *groups.count_each([dist.group.WORLD]).values())
    dist.barrier()
    dist.destroy_process_group()
