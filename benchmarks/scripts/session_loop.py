"""The loop of `loop.py` as an ElasticJob session: the same all_reduce, but the process outlives its world.

It writes the same lines. `step` starts at 0 in each world; `count` is the committed work, which survivors keep in
memory, so `--checkpoint` is accepted and not needed.
"""

from __future__ import annotations

import time

STARTED = time.time()

from collections.abc import Iterator  # noqa: E402

import torch  # noqa: E402
from lines import Lines, parse_arguments  # noqa: E402

from elasticjob.sessions.session import Session  # noqa: E402

IMPORTED = time.time()


def endless(size: int) -> Iterator[torch.Tensor]:
    while True:
        yield torch.ones(1, size)


def main() -> None:
    args = parse_arguments(__doc__)
    torch.set_num_threads(1)
    write = Lines(args.out).write

    write(t=STARTED, mark="script")
    write(t=IMPORTED, mark="imported")
    model = torch.nn.Linear(args.size, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = Session(model=model, optimizer=optimizer)
    generation, step = -1, 0
    for inputs in run.batches(endless(args.size)):
        before = run.committed
        with run.step():
            if run.generation == generation:  # like in `loop.py`, the first step of a world is immediate
                time.sleep(args.step_seconds)
            run.model(inputs).sum().backward()
            if run.ends_step:
                optimizer.step()
                optimizer.zero_grad()
        if run.committed > before:
            step = 0 if run.generation != generation else step + 1
            generation = run.generation
            write(t=time.time(), step=step, count=run.committed + 1, rank=run.rank, world=run.world_size)


if __name__ == "__main__":
    main()
