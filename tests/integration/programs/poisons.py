"""Trains with checkpoints in a folder. Once, in the first world, a parameter becomes NaN before a checkpoint is saved.

    torchrun poisons.py DIRECTORY [memory] [always]

The script notices it two steps after that checkpoint. With `memory` each step has a snapshot too. With `always` it
fails at that step from any checkpoint.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import elasticjob
from elasticjob.checkpoint import Checkpointer

POISONED, SAVED_EVERY, CHECKED, LAST = 13, 5, 17, 30
directory, always = Path(sys.argv[1]), "always" in sys.argv

with elasticjob.init("gloo") as world:
    model = torch.nn.Linear(4, 1)
    snapshots = int("memory" in sys.argv)
    checkpoint = Checkpointer(directory / "saved", model, every=SAVED_EVERY, memory_every=snapshots, asynchronous=False)
    step = first = checkpoint.restore()
    print(f"starts from step {first}", flush=True)
    mark = directory / "poisoned"
    while step < LAST:
        step += 1
        if step == POISONED and not mark.exists():
            world.barrier()
            mark.touch()
            with torch.no_grad():
                model.weight.fill_(float("nan"))
        if step == CHECKED and (always or bool(model.weight.isnan().any())):
            raise FloatingPointError(f"the loss is NaN after step {step}")
        elasticjob.report(step=step, total=LAST)
        if checkpoint.should_save(step):
            checkpoint.save(step)
        time.sleep(0.1)
