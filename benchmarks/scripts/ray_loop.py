"""The loop of `loop.py` in Ray Train's own style: a program on the head node, whose function each worker runs.

It writes the same lines. Ray connects the process group before it calls the function, so there is one mark, `script`.
There, `BENCH_ADDRESS` is that of Ray's store, `BENCH_WORKERS` has the number of nodes to wait for and the most workers,
and `BENCH_RESIZE_SECONDS` says how often Ray considers another size. `BENCH_NODE` is the number of each other node.
"""

from __future__ import annotations

import argparse
import os
import time

import ray  # type: ignore[import-not-found]
from lines import parse_arguments
from ray.train import FailureConfig, RunConfig, ScalingConfig  # type: ignore[import-not-found]
from ray.train.torch import TorchConfig, TorchTrainer  # type: ignore[import-not-found]


def train(args: argparse.Namespace) -> None:
    # Here, because a worker gets this function without its module.
    import torch
    import torch.distributed as dist
    from lines import Lines
    from loop import load, save

    write = Lines(args.out / os.environ["BENCH_NODE"]).write
    write(t=time.time(), mark="script")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    count = load(args.checkpoint) if args.checkpoint else 0
    numbers, step = torch.ones(args.size), 0
    while True:
        dist.all_reduce(numbers)
        numbers /= world
        step += 1
        count += 1
        write(t=time.time(), step=step - 1, count=count, rank=rank, world=world)
        if args.checkpoint and rank == 0 and step % args.checkpoint_every == 0:
            save(args.checkpoint, count)
        time.sleep(args.step_seconds)


def main() -> None:
    args = parse_arguments(__doc__)
    wanted, maximum = map(int, os.environ["BENCH_WORKERS"].split())
    ray.init(address=os.environ["BENCH_ADDRESS"], log_to_driver=False)
    while ray.cluster_resources().get("CPU", 0) < wanted:
        time.sleep(0.05)
    TorchTrainer(
        train,
        train_loop_config=args,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(1, maximum), elastic_resize_monitor_interval_s=float(os.environ["BENCH_RESIZE_SECONDS"])
        ),
        run_config=RunConfig(
            name="bench", storage_path=str(args.out.parent / "storage"), failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()


if __name__ == "__main__":
    main()
