"""An unmodified elastic script for the benchmarks: all_reduce in a loop, and when each part of its start happened.

It knows nothing of ElasticJob. It appends JSON lines to `OUT/<pid>.jsonl`: marks `{"t", "mark", "pid"}` for
`script` (first line of this file), `imported` (torch is there), `connected` (the process group is there), and one
line a step: `{"t", "step", "count", "rank", "world", "pid"}`. `t` is the time after the step, `step` starts at 0 in
each process. `count` is the work that was done and kept: it goes on from the last checkpoint.
"""

from __future__ import annotations

import time

STARTED = time.time()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

IMPORTED = time.time()


class Log:
    """One write per line, so that a SIGKILL never leaves half of one."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **values: float | str) -> None:
        os.write(self.descriptor, (json.dumps({**values, "pid": os.getpid()}) + "\n").encode())


def load(checkpoint: Path) -> int:
    """The last count that was saved, as rank 0 sees it: all ranks go on from the same one."""
    count = torch.tensor([int(checkpoint.read_text()) if checkpoint.exists() else 0])
    dist.broadcast(count, 0)
    return int(count.item())


def save(checkpoint: Path, count: int) -> None:
    new = checkpoint.with_suffix(f".{os.getpid()}")
    new.write_text(str(count))
    new.replace(checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(args.out)
    log.write(t=STARTED, mark="script")
    log.write(t=IMPORTED, mark="imported")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    count = load(args.checkpoint) if args.checkpoint else 0
    log.write(t=time.time(), mark="connected")
    numbers, step = torch.ones(args.size), 0
    while True:
        dist.all_reduce(numbers)
        numbers /= world
        step += 1
        count += 1
        log.write(t=time.time(), step=step - 1, count=count, rank=rank, world=world)
        if args.checkpoint and rank == 0 and step % args.checkpoint_every == 0:
            save(args.checkpoint, count)
        time.sleep(args.step_seconds)


if __name__ == "__main__":
    main()
