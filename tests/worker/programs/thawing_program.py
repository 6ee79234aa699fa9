"""A session of a sharded model: its script unfreezes a part once, in the middle of the first world."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from elasticjob import Session
from worker.programs.backends import choose

THAWED, LAST = 3, 12


def build(mesh: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model[0].requires_grad_(False)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    torch.set_num_threads(1)
    is_killed = os.environ["ENDS"] == "loss"
    session = Session(build=build, copy_every=int(is_killed), backend=choose())
    folder = Path(os.environ["OUT"])
    while session.committed < LAST:
        if session.committed + 1 == THAWED:
            session.model[0].requires_grad_(True)
        if session.committed == 7 and session.generation == 1:
            if is_killed and session.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            while not is_killed and not Path(folder, "told").exists():
                time.sleep(0.01)
        before = session.committed
        with session.step():
            session.backward(session.model(torch.full((2, 4), 0.1 * session.committed)).square().mean())
            session.optimizer.step()
            session.optimizer.zero_grad()
        if session.committed > before:
            weight = session.model[0].weight.full_tensor().detach().double().norm().item()
            row = {"step": session.committed, "generation": session.generation, "weight": weight}
            with Path(folder, f"{os.getpid()}.jsonl").open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    session.close()


if __name__ == "__main__":
    main()
