"""The loop of `session_loop.py` in torchft's own style: manager, its DistributedDataParallel, its optimizer.

It writes the same lines. A world is torchft's process group: a replica that has just joined commits its first step in
it together with the others, although it contributes only zeros. `count` is the manager's number of committed steps.
"""

from __future__ import annotations

import time

STARTED = time.time()

import os  # noqa: E402
from datetime import timedelta  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from lines import Lines, parse_arguments  # noqa: E402
from torchft import (  # type: ignore[import-not-found]  # noqa: E402
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

IMPORTED = time.time()


def main() -> None:
    args = parse_arguments(__doc__)
    torch.set_num_threads(1)
    write = Lines(args.out).write

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    write(t=STARTED, mark="script")
    write(t=IMPORTED, mark="imported")
    group = ProcessGroupGloo(timeout=timedelta(seconds=5))
    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"replica_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=30),
    )
    model = DistributedDataParallel(manager, torch.nn.Linear(args.size, 1, bias=False))
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=1e-6))
    write(t=time.time(), mark="connected")
    world, step, inputs = None, 0, torch.ones(1, args.size)
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if manager.current_step() > before:
            step = 0 if group.parent is not world else step + 1
            world = group.parent
            count, rank, size = manager.current_step(), world.rank(), world.size()
            write(t=time.time(), step=step, count=count, rank=rank, world=size)
        time.sleep(args.step_seconds)


if __name__ == "__main__":
    main()
