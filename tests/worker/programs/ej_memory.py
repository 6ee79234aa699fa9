"""Trains with a snapshot of every step in memory, and writes which step each process has restored and finished."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import elasticjob

folder = Path(sys.argv[1])
with elasticjob.init() as world:
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = elasticjob.Checkpointer(folder / "checkpoints", model, optimizer, memory_every=1)
    step = checkpoint.restore()
    with (folder / f"steps-{os.getpid()}.jsonl").open("a") as out:
        while True:
            print(json.dumps({"generation": world.generation, "step": step}), file=out, flush=True)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if checkpoint.should_save(step):
                checkpoint.save(step)
                checkpoint.wait()  # so that a step that is written here is in memory
            time.sleep(0.02)
