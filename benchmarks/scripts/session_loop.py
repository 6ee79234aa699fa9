"""The loop of `loop.py` on a session of ElasticJob: the same all_reduce, but the process outlives its world.

It writes the same lines. `step` starts at 0 in each world; `count` is the work committed, which survivors keep in
memory, so `--checkpoint` is accepted and not needed.
"""

from __future__ import annotations

import time

STARTED = time.time()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from elasticjob.session import Session  # noqa: E402

IMPORTED = time.time()


def endless(size: int) -> Iterator[torch.Tensor]:
    while True:
        yield torch.ones(1, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(args.out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(**values: float | str) -> None:
        os.write(descriptor, (json.dumps({**values, "pid": os.getpid()}) + "\n").encode())

    write(t=STARTED, mark="script")
    write(t=IMPORTED, mark="imported")
    model = torch.nn.Linear(args.size, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = Session(model=model, optimizer=optimizer)
    generation, step = -1, 0
    for inputs in run.batches(endless(args.size)):
        before = run.committed
        with run.step():
            run.model(inputs).sum().backward()
            if run.ends_step:
                optimizer.step()
                optimizer.zero_grad()
        if run.committed > before:
            step = 0 if run.generation != generation else step + 1
            generation = run.generation
            write(t=time.time(), step=step, count=run.committed + 1, rank=run.rank, world=run.world_size)
        time.sleep(args.step_seconds)


if __name__ == "__main__":
    main()
