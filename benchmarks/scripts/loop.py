"""An unmodified elastic script for the benchmarks: all_reduce in a loop, with timestamps for each part of its start.

It does not use ElasticJob. `lines.py` describes its output. `step` starts at 0 in each process. `count` is the
completed work that was kept: it continues from the last checkpoint.
"""

from __future__ import annotations

import time

STARTED = time.time()

import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lines import Lines, parse_arguments  # noqa: E402

IMPORTED = time.time()


def load(checkpoint: Path) -> int:
    """The last saved count, as read by rank 0, so that all ranks continue from the same one."""
    count = torch.tensor([int(checkpoint.read_text()) if checkpoint.exists() else 0])
    dist.broadcast(count, 0)
    return int(count.item())


def save(checkpoint: Path, count: int) -> None:
    new = checkpoint.with_suffix(f".{os.getpid()}")
    new.write_text(str(count))
    new.replace(checkpoint)


def main() -> None:
    args = parse_arguments(__doc__)
    torch.set_num_threads(1)
    lines = Lines(args.out)
    lines.write(t=STARTED, mark="script")
    lines.write(t=IMPORTED, mark="imported")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    count = load(args.checkpoint) if args.checkpoint else 0
    lines.write(t=time.time(), mark="connected")
    numbers, step = torch.ones(args.size), 0
    while True:
        dist.all_reduce(numbers)
        numbers /= world
        step += 1
        count += 1
        lines.write(t=time.time(), step=step - 1, count=count, rank=rank, world=world)
        if args.checkpoint and rank == 0 and step % args.checkpoint_every == 0:
            save(args.checkpoint, count)
        time.sleep(args.step_seconds)


if __name__ == "__main__":
    main()
