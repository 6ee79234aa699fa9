"""Like `poisons.py`, with checkpoints of its own: rank 0 writes files, and only its pod has them.

    torchrun poisons_alone.py CHECKPOINTS DIRECTORY

Once, in the first world, a parameter becomes NaN before a checkpoint is saved, which is noticed some steps later. When
the same error has come twice, it touches `asked` in the directory, and waits there for `go` before it starts.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import elasticjob

POISONED, SAVED_EVERY, CHECKED, LAST = 13, 5, 20, 30
checkpoints, directory = Path(sys.argv[1]), Path(sys.argv[2])


def load(repeats: int) -> dict[str, torch.Tensor]:
    """As docs/checkpoints.md says: the newest file, or an older one where the same error has come again."""
    files = sorted(checkpoints.glob("step-*.pt"), reverse=True)
    if not files:
        return {"step": torch.tensor(0), "weight": torch.ones(1)}
    state: dict[str, torch.Tensor] = torch.load(files[max(0, min(repeats - 1, len(files) - 1))], weights_only=True)
    return state


with elasticjob.init("gloo") as world:
    if world.repeats >= 2 and not (directory / "go").exists():
        (directory / "asked").touch()
        while not (directory / "go").exists():
            time.sleep(0.05)
    state = load(world.repeats) if world.is_first else {"step": torch.tensor(0), "weight": torch.ones(1)}
    for part in state.values():
        dist.broadcast(part, 0)
    step = int(state["step"])
    if world.is_first:
        with (directory / "starts").open("a") as file:
            print(world.generation, step, world.repeats, os.environ["ELASTICJOB_POD_UID"], file=file)
    while step < LAST:
        step += 1
        if step == POISONED and not (directory / "poisoned").exists():
            world.barrier()
            (directory / "poisoned").touch()
            state["weight"].fill_(float("nan"))
        if step == CHECKED and bool(state["weight"].isnan().any()):
            raise FloatingPointError(f"the loss is NaN after step {step}")
        elasticjob.report(step=step, total=LAST)
        world.barrier()
        if step % SAVED_EVERY == 0 and world.is_first:
            unfinished = checkpoints / f"{step}.tmp"
            torch.save({"step": torch.tensor(step), "weight": state["weight"]}, unfinished)
            unfinished.rename(checkpoints / f"step-{step:08d}.pt")
        time.sleep(0.5)
