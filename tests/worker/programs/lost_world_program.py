"""Rank 1 dies, hangs or is cut off in several ways; rank 0 reports how it classifies torch's error.

The process imports torch once and forks for each case.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from elasticjob.sessions.process_groups import is_world_failure
from elasticjob.torchcompat import sockets
from worker.programs.saying import say


def _reduce() -> None:
    dist.all_reduce(torch.ones(8))


def _train() -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    while True:
        model(torch.ones(1, 4)).sum().backward()


def _time_out() -> None:
    try:
        _reduce()
    except RuntimeError:
        _reduce()  # what follows has another text


def _cut_off() -> None:
    work = dist.all_reduce(torch.ones(8), async_op=True)
    sockets.shut_down(sockets.find_connections())
    work.wait()


CASES: dict[str, Callable[[], object]] = {
    "all_reduce": _reduce,
    "barrier": dist.barrier,
    "recv": lambda: dist.recv(torch.ones(8), 1),
    "backward": _train,
    "time-out": lambda: dist.recv(torch.ones(8), 1),
    "after a time-out": _time_out,
    "cut off": _cut_off,
}


def run_case(name: str, rank: int) -> None:
    limit = datetime.timedelta(seconds=2 if "time-out" in name else 30)
    store = PrefixStore(name, TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False))
    # The short limit is for what comes now, not for a rank that the case before has kept.
    store.set(f"{rank} is here", "yes")
    store.wait([f"{one} is here" for one in range(2)], datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    dist.barrier()
    if rank == 1:
        if name == "backward":
            DistributedDataParallel(torch.nn.Linear(4, 4))  # its first exchange is in order
        if "time-out" in name or name == "cut off":
            store.wait([f"{name} is over"], datetime.timedelta(seconds=60))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(100):  # a rank may have its part before the death is felt
            CASES[name]()
            time.sleep(0.01)
        say(name, [False, "no error"])
    except Exception as error:
        say(name, [is_world_failure(error, lambda: False), f"{type(error).__name__}: {error}"])
    store.set(f"{name} is over", "yes")
    os._exit(0)


def main() -> None:
    for name in CASES:
        child = os.fork()
        if child == 0:
            run_case(name, int(os.environ["RANK"]))
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
