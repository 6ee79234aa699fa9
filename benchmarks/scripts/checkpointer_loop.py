"""The loop of `loop.py` with a `Checkpointer`: started again in each world, it saves when a change is announced.

It writes the same lines. `--checkpoint` is the directory, and is required. The variable MEMORY_EVERY is the number of
steps between two snapshots in memory (default: none); with them, one of ten checkpoints is written to the directory.
"""

from __future__ import annotations

import os
import time

STARTED = time.time()

import torch  # noqa: E402
from lines import Lines, parse_arguments  # noqa: E402

import elasticjob  # noqa: E402

IMPORTED = time.time()


def main() -> None:
    args = parse_arguments(__doc__)
    if args.checkpoint is None:
        raise SystemExit("--checkpoint is missing: name a directory")
    write = Lines(args.out).write
    write(t=STARTED, mark="script")
    write(t=IMPORTED, mark="imported")
    with elasticjob.init(threads=1) as world:
        model = torch.nn.Linear(args.size, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        trained = torch.nn.parallel.DistributedDataParallel(model)
        memory_every = int(os.environ.get("MEMORY_EVERY", "0"))
        checkpoint = elasticjob.Checkpointer(
            *(args.checkpoint, model, optimizer),
            every=args.checkpoint_every * (10 if memory_every else 1),
            memory_every=memory_every,
        )
        count = checkpoint.restore()
        write(t=time.time(), mark="connected")
        step, inputs = 0, torch.ones(1, args.size)
        while True:
            trained(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
            write(t=time.time(), step=step, count=count, rank=world.rank, world=world.world_size)
            step += 1
            if checkpoint.should_save(count):
                checkpoint.save(count)
            time.sleep(args.step_seconds)


if __name__ == "__main__":
    main()
