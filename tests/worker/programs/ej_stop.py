"""Saves after the step in which it received SIGTERM, as ordinary scripts do, with what such scripts have running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

out, kind = Path(sys.argv[1]), sys.argv[2]
stopped: list[int] = []


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(4)


def stop(number: int, frame: object) -> None:
    stopped.append(number)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    dist.init_process_group("gloo")
    if kind == "child":
        child = subprocess.Popen(["sleep", "1000"])
    workers = 2 if kind in ("fork", "spawn") else 0
    loader = DataLoader(Samples(), 8, num_workers=workers, multiprocessing_context=kind if workers else None)
    batches = iter(loader)
    for step in range(100_000):
        next(batches)
        wish = torch.tensor(float(bool(stopped)))
        dist.all_reduce(wish)
        (out / f"trains-{os.environ['ELASTICJOB_GENERATION']}").touch()
        if wish:
            time.sleep(0.5)  # the rest of a step, in which it needs what it has started
            if kind == "child" and child.poll() is not None:
                sys.exit(3)
            next(batches)
            if kind == "raises":
                raise OSError("the disk is full")
            (out / f"saved-{os.environ['ELASTICJOB_GENERATION']}").write_text(str(step))
            os._exit(0)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
