"""Two ranks reduce numbers until one of them ends as the first argument says."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

MODE = sys.argv[1]
END_AT = 10

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
    if step == END_AT and rank == size - 1 > 0:
        print(f"rank {rank} of {size} comes to its end", flush=True)
        if MODE == "exit":
            sys.exit(3)
        os.write(2, b"Segmentation fault\n")
        os.kill(os.getpid(), signal.SIGSEGV)
