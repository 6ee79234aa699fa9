"""Trains until a file named `stop` appears in OUT; uses only torch. It writes one JSON line per step to OUT."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    out = Path(sys.argv[1])
    assert "elasticjob" not in sys.modules or os.environ.get("PYTHONPATH"), "the runtime is not the image's"
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    step = 0
    with (out / f"{os.environ['ELASTICJOB_POD_NAME']}-{os.getpid()}.jsonl").open("a", buffering=1) as file:
        while True:
            # Everybody leaves in the same step: what one sees, the sum tells all.
            both = torch.tensor([1.0, 1.0 if (out / "stop").exists() else 0.0])
            dist.all_reduce(both)
            assert int(both[0]) == world
            file.write(json.dumps({"t": time.time(), "rank": rank, "world": world, "step": step}) + "\n")
            if both[1] > 0:
                break
            step += 1
            time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
