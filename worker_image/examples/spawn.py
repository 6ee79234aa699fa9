"""torch.multiprocessing.spawn: several processes on one node, without a launcher.

The processes set the variables of the launcher themselves, so `elasticjob.init()` works as under torchrun. A process
that fails ends the others. There is no elastic agent, so nobody starts them again: for that use torchrun or
elasticjob-run.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import elasticjob


def work(rank: int, size: int, port: int) -> None:
    """One process."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # the store is there
    with elasticjob.init(threads=1) as world:
        total = elasticjob.all_reduce(torch.tensor([rank + 1]))
        print(json.dumps({"rank": rank, "elastic": world.elastic, "total": total.item()}), flush=True)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    # The parent holds the store, so the port is taken before a child looks for it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    spawn(work, args=(size, store.port), nprocs=size)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
