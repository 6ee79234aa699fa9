"""Rank 1 dies during each collective. The others must get an error soon, and not hang.

The process imports torch once and forks for each case, so that a case costs no import.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import elasticjob
from elasticjob.errors import CollectiveFailedError
from worker.programs.saying import say

NUMBERS = 1000
CASES: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: elasticjob.all_reduce(torch.ones(NUMBERS)),
    "all_gather": lambda: elasticjob.all_gather(torch.ones(NUMBERS)),
    "gather": lambda: elasticjob.gather(torch.ones(NUMBERS), dst=0),
    "all_gather_unequal": lambda: elasticjob.all_gather_unequal(torch.ones(NUMBERS + dist.get_rank())),
    "gather_unequal": lambda: elasticjob.gather_unequal(torch.ones(NUMBERS + dist.get_rank()), dst=0),
    "recv": lambda: elasticjob.recv(1),
    "broadcast": lambda: dist.broadcast(torch.ones(NUMBERS), 1),
    "reduce": lambda: dist.reduce(torch.ones(NUMBERS), 0),
    "scatter": lambda: dist.scatter(torch.ones(NUMBERS), None, src=1),
    "all_to_all": lambda: dist.all_to_all_single(torch.ones(3 * NUMBERS), torch.ones(3 * NUMBERS)),
    "barrier": dist.barrier,
}


def run_case(name: str, rank: int) -> None:
    port = int(os.environ["MASTER_PORT"])
    limit = datetime.timedelta(seconds=20)
    store = PrefixStore(name, TCPStore("127.0.0.1", port, is_master=False, timeout=limit))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=limit)
    dist.barrier()
    if rank == 1:
        os._exit(9)  # as SIGKILL does: no goodbye
    started = time.monotonic()
    try:
        # A rank may get its part before the death is felt; it feels it in one of the next.
        for _ in range(100):
            CASES[name]()
        error = "no error"
    except CollectiveFailedError as failure:
        error = f"CollectiveFailedError: {failure}"
    except RuntimeError as failure:
        error = f"RuntimeError: {failure}"
    say(name, [error, time.monotonic() - started])
    os._exit(0)


def main() -> None:
    rank = int(os.environ["RANK"])
    for name in CASES:
        child = os.fork()
        if child == 0:
            run_case(name, rank)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
