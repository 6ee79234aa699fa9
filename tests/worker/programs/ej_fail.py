"""Fails on purpose: rank 1 of the first world raises, all others continue to reduce."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"pid {os.getpid()} argv {sys.argv[1:]} name {__name__} file {__file__}", flush=True)
for step in range(20):
    dist.all_reduce(torch.ones(1))
    if step == 5 and dist.get_rank() == dist.get_world_size() - 1 and restarts == 0:
        raise ValueError("the first world is meant to fail")
    time.sleep(0.02)
print(f"finished after {restarts} restarts", flush=True)
dist.barrier()
dist.destroy_process_group()
