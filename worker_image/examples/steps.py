"""The smallest job that is worth watching: an endless all_reduce, one line of JSON a step.

The benchmarks and tests measure with it. It imports nothing of ElasticJob and runs on gloo, so the same
file runs under any launcher. Each rank appends `{"t", "rank", "world", "step", "pid", "generation"}` to its
own file `OUT/<hostname>-<pid>.jsonl`, or to OUT itself if that is a file name ending in `.jsonl`. `t` is
`time.time()` after the step. `step` starts at 0 in each process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist


def open_output(out: Path) -> int:
    """A descriptor in append mode: a line is one write, so processes may share the file."""
    if out.suffix != ".jsonl":
        out.mkdir(parents=True, exist_ok=True)
        out = out / f"{socket.gethostname()}-{os.getpid()}.jsonl"
    return os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a directory, or a file *.jsonl")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many; 0 means never")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="time between two steps")
    parser.add_argument("--size", type=int, default=1, help="numbers in the tensor that is reduced")
    args = parser.parse_args()

    torch.set_num_threads(1)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    dist.init_process_group("gloo")
    env = os.environ
    generation = int(env.get("ELASTICJOB_GENERATION") or env.get("TORCHELASTIC_RESTART_COUNT") or 0)
    rank, world = dist.get_rank(), dist.get_world_size()
    descriptor = open_output(args.out)
    where = {"rank": rank, "world": world, "pid": os.getpid(), "generation": generation}
    step = 0
    while args.steps == 0 or step < args.steps:
        numbers = torch.full((args.size,), float(rank + 1))
        dist.all_reduce(numbers)
        if numbers[0].item() != world * (world + 1) / 2:
            raise SystemExit(f"rank {rank}: all_reduce gave {numbers[0].item()} in a world of {world}")
        line = json.dumps({"t": time.time(), "step": step} | where) + "\n"
        os.write(descriptor, line.encode())
        step += 1
        time.sleep(args.step_seconds)
    dist.barrier()  # nobody hangs up while another still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
