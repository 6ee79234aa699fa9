"""Two ranks reduce numbers until one of them ends in the way that the first argument names."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import elasticjob

MODE = sys.argv[1]
END_AT = {"quiet": 80, "early": 0, "beside": 0}.get(MODE, 20)


def come_to_an_end() -> None:
    print(f"rank {rank} of {size} comes to its end", flush=True)
    if MODE == "exit":
        sys.exit(3)
    if MODE == "well":
        sys.exit(0)
    if MODE == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(10_000)


def work_a_little() -> None:
    while True:
        began = time.thread_time()
        while time.thread_time() - began < 0.06:
            pass
        time.sleep(0.94)


idle = threading.Event().wait
threading.Thread(target=work_a_little if MODE == "beside" else idle, name="loader", daemon=True).start()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    if MODE == "hang":
        elasticjob.report(step=step)
    time.sleep(0.1)
    if step == END_AT and rank == size - 1 > 0:
        come_to_an_end()
