"""A session that saves only when it is told to; a line says what a process has restored, and each step that it made.

With further arguments, numbers by name, the model is sharded, and these are arguments of the session. With the word
`unsaved` it has no Checkpointer, and with `asks` it only asks whether it should save.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import Checkpointer, ElasticDistributedSampler, Session, checkpoint

out, words = Path(sys.argv[1]), sys.argv[2:]
sharding = [one for one in words if "=" in one]
out.mkdir(exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = ElasticDistributedSampler(96, global_batch_size=12)
loader = DataLoader(data, batch_sampler=sampler)
descriptor = os.open(out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
checkpoints: list[Checkpointer] = []


def build(mesh: DeviceMesh | None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weigh(model: Any, optimizer: Any) -> float:
    """All ranks of a sharded model call it."""
    kept = [optimizer.state[one].get("momentum_buffer", torch.zeros(1)) for one in model.parameters()]
    shown = (one.full_tensor() if hasattr(one, "full_tensor") else one for one in (*model.parameters(), *kept))
    return float(sum(one.detach().double().abs().sum() for one in shown))


def write(here: Session, step: int, weight: float, **more: bool) -> None:
    about = {"generation": here.generation, "rank": here.rank, "world": here.world_size, "pid": os.getpid()}
    about |= {"used": sampler.used, **more}
    line = json.dumps({"t": time.time(), "step": step, "weight": weight, **about})
    os.write(descriptor, (line + "\n").encode())


def on_world(here: Session) -> None:
    model = here.model if sharding else made
    if sharding != words:
        return
    checkpoints[:] = [Checkpointer(out / "saved", model, here.optimizer, sampler=sampler)]
    if here.committed < 0:
        here.committed = checkpoints[0].restore() - 1
        write(here, here.committed + 1, weigh(model, here.optimizer), restored=True)


if sharding:
    more = {name: int(value) for name, value in (one.split("=") for one in sharding)}
    session = Session(build=build, sampler=sampler, on_world=on_world, **more)  # type: ignore[arg-type]
else:
    made, trained_by = build(None)
    session = Session(model=made, optimizer=trained_by, sampler=sampler, on_world=on_world)
for epoch in range(sampler.epoch, 10**6):
    sampler.set_epoch(epoch)
    for x, y in session.batches(loader):
        weight = None
        with session.step():
            session.backward(torch.nn.functional.mse_loss(session.model(x), y))
            if session.ends_step:
                session.optimizer.step()
                session.optimizer.zero_grad()
                weight = weigh(session.model, session.optimizer)
                if words == ["asks"]:
                    checkpoint.requested()
                if checkpoints and checkpoints[0].should_save(session.committed + 2):
                    checkpoints[0].save(session.committed + 2)
        if weight is not None:
            write(session, session.committed + 1, weight)
        time.sleep(0.05)
session.close()
