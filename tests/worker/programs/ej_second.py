"""Trains, and lets rank 0 start another launcher after some steps: a script that has a program of its own run."""

import subprocess
import sys

import torch
import torch.distributed as dist

import elasticjob

STEPS, SECOND = 40, 10


def main() -> None:
    command = sys.argv[1:]
    world = elasticjob.init()
    for step in range(1, STEPS + 1):
        if step == SECOND and world.rank == 0:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            print(f"the second launcher ended with {done.returncode}:\n{done.stdout}{done.stderr}", flush=True)
        dist.all_reduce(torch.ones(1))
        elasticjob.report(step=step)
    print(f"trained all steps in generation {world.generation}", flush=True)


if __name__ == "__main__":
    main()
