"""Was I launched by an elastic agent? One script that takes the right path in each case.

`torch.distributed.is_torchelastic_launched()` asks for the variable TORCHELASTIC_RUN_ID, which an elastic agent sets:
torchrun, elasticjob-run and so every ElasticJob. Plain python and torch.multiprocessing do not set it.

    python launched.py
    torchrun --standalone --nproc-per-node=2 launched.py
"""

from __future__ import annotations

import json
import os

import torch.distributed as dist


def main() -> None:
    if dist.is_torchelastic_launched():
        path = "elastic"  # rank, world size and the address of the store are in the environment, and may change
        dist.init_process_group("gloo")
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        path = "launched"  # by something that sets the same variables, once
        dist.init_process_group("gloo")
    else:
        path = "alone"
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo")
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("TORCHELASTIC_")}
    facts = {"path": path, "rank": dist.get_rank(), "worldSize": dist.get_world_size(), "variables": variables}
    print(json.dumps(facts), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
