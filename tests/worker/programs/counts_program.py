"""Three ranks in one world after the other; in the first one, rank 0 sends its state to rank 1."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.torchcompat import groups
from worker.programs.saying import say

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store: Any = dist.TCPStore(*address, SIZE, is_master=RANK == 0)  # type: ignore[attr-defined]
groups.watch_messages()
for number in range(2):
    groups.name_groups_anew()
    there: Any = dist.PrefixStore(str(number), store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=there, rank=RANK, world_size=SIZE)
    if number == 0 and RANK == 0:
        for _ in range(3):
            dist.send(torch.ones(4), 1)
    elif number == 0 and RANK == 1:
        for _ in range(3):
            dist.recv(torch.zeros(4), 0)
    dist.all_reduce(torch.ones(4))
    say(f"messages in world {number}", groups.count_messages())
    say(f"world {number}", *groups.count_each([dist.group.WORLD]).values())
    dist.barrier()
    dist.destroy_process_group()
