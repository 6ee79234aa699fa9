"""A session that saves only when it is told to; a line says what a process has restored, and each step that it made."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import Checkpointer, ElasticDistributedSampler, Session

out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = ElasticDistributedSampler(96, global_batch_size=12)
loader = DataLoader(data, batch_sampler=sampler)
descriptor = os.open(out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
checkpoints: list[Checkpointer] = []


def write(here: Session, step: int, **more: bool) -> None:
    weight = sum(one.double().abs().sum().item() for one in model.parameters())
    place = {"generation": here.generation, "rank": here.rank, "world": here.world_size, "pid": os.getpid()}
    os.write(
        descriptor, (json.dumps({"t": time.time(), "step": step, "weight": weight, **place, **more}) + "\n").encode()
    )


def on_world(here: Session) -> None:
    checkpoints[:] = [Checkpointer(out / "saved", model, optimizer, sampler=sampler)]
    if here.committed < 0:
        here.committed = checkpoints[0].restore() - 1
        write(here, here.committed + 1, restored=True)


session = Session(model=model, optimizer=optimizer, sampler=sampler, on_world=on_world)
for epoch in range(sampler.epoch, 10**6):
    sampler.set_epoch(epoch)
    for x, y in session.batches(loader):
        before = session.committed
        with session.step():
            session.backward(torch.nn.functional.mse_loss(session.model(x), y))
            if session.ends_step:
                optimizer.step()
                optimizer.zero_grad()
                if checkpoints[0].should_save(session.committed + 2):
                    checkpoints[0].save(session.committed + 2)
        if session.committed > before:
            write(session, session.committed + 1)
        time.sleep(0.05)
session.close()
