"""Trains with checkpoints in a folder, and falls sick.

    torchrun sick.py DIRECTORY ILLNESS

Each start writes the step from which it goes on to a file `starts`, by rank 0. "Once" is in the first world only; "with
a file" on the nodes that have a file of their name in the folder. The illnesses:

none: it stays healthy.
nan: the loss is NaN from step 20 on, until there is a file `cured`.
rank: the loss is NaN, with a file.
gradients: the norm of the gradients of rank 1 is infinite from step 20 on, and its loss is not.
spike: once, from step 43 on, the loss is a hundred times as high, and so it stays.
bump: from step 250 to step 300 the loss of rank 1 is three times as high.
collapse: the accuracy falls from step 20 on, until there is a file `cured`.
leak: once, rank 1 keeps a mebibyte more of memory after each step.
sink: from step 250 on, each step takes ten times as long.
evaluation: from step 250 on, the evaluation takes ten times as long.
save: once, a save takes four seconds from step 30 on.
start: its first step takes ten seconds.
ecc: ranks write an error to their log, with a file, from then on.
logged: it reports nothing, and writes the loss, which is NaN from step 20 on.
hang: once, rank 1 waits for something at step 20 that does not come.
raise: once, rank 1 fails at step 25.
killed: once, rank 1 is killed at step 25, as for want of memory.
crash: it fails at step 17, from each checkpoint.
weights: once, the parameters, and so the loss, are NaN from step 33 on, and are saved.
hidden: once, the parameters are NaN from step 33 on, which the loss does not show; then rank 1 fails at step 45.
cut: once, the newest checkpoint is cut in half at step 25, and rank 1 fails.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elasticjob
from elasticjob.checkpoint import Checkpointer

EVERY, LAST, LATE, MIB = 10, 1_000_000, 250, 2**20
directory, illness = Path(sys.argv[1]), sys.argv[2]
node = directory / os.environ["ELASTICJOB_NODE_NAME"]
cured = directory / "cured"
once = os.environ["ELASTICJOB_GENERATION"] == "1"
NAN = float("nan")


class Model(torch.nn.Linear):
    """It may take long to save."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if illness == "save" and once and step >= 30:
            time.sleep(4)
        return super().state_dict(*args, **kwargs)


def measure(step: int, rank: int) -> dict[str, Any]:
    """What is reported after a step."""
    told = {"loss": 2.0 + 0.01 * (step % 7)}
    match illness:
        case "spike" if spiked and step >= 43 and rank == 0:
            cured.touch()
            told["loss"] *= 100
        case "bump" if LATE <= step < LATE + 50 and rank == 1:
            told["loss"] *= 3
        case "nan" | "logged" if step >= 20 and not cured.exists():
            told["loss"] = NAN
        case "rank" if node.exists():
            told["loss"] = NAN
        case "weights" | "hidden" if (not once or illness == "weights") and model.weight.isnan().any():
            told["loss"] = NAN
        case "gradients":
            told["gradientNorm"] = float("inf") if rank == 1 and step >= 20 else 0.5
        case "collapse":
            told["accuracy"] = 0.1 if step >= 20 and not cured.exists() else 0.9
        case "leak":
            told["memoryMiB"] = 100 + sum(map(len, leaked)) / MIB
        case "evaluation":
            told["evaluationSeconds"] = 0.3 if step < LATE else 3.0
    return told


def fall_sick(step: int, rank: int) -> None:
    """What happens in a step before it is reported."""
    match illness:
        case "start" if step == 1:
            time.sleep(10)
        case "ecc" if node.exists():
            print("NVRM: Xid 48: GPU 0: Uncorrectable ECC error", file=sys.stderr, flush=True)
        case "crash" if step == 17:
            raise ValueError("bad sample")
        case "leak" if once and rank == 1:
            leaked.append(bytearray(MIB))
        case "weights" | "hidden" if once and step == 33:
            with torch.no_grad():
                model.weight.fill_(NAN)
        case "hang" if once and rank == 1 and step == 20:
            time.sleep(10_000)
        case "killed" if once and rank == 1 and step == 25:
            os.kill(os.getpid(), signal.SIGKILL)
    fails_at = {"raise": 25, "hidden": 45, "cut": 25}.get(illness)
    if once and rank == 1 and step == fails_at:
        if illness == "cut":
            for file in (directory / "saved/step-00000020").rglob("*.pt"):
                os.truncate(file, file.stat().st_size // 2)
        raise RuntimeError("a cosmic ray")


spiked = illness == "spike" and not cured.exists()
leaked: list[bytearray] = []
step = 0
with elasticjob.init("gloo") as world:
    model = Model(4, 1)
    checkpoint = Checkpointer(directory / "saved", model, every=EVERY, keep=0, asynchronous=False)
    step = checkpoint.restore()
    if world.is_first:
        with (directory / "starts").open("a") as file:
            file.write(f"{step}\n")
    while step < LAST:
        step += 1
        fall_sick(step, world.rank)
        told = measure(step, world.rank)
        if illness == "logged":
            print(f"step {step} loss={told['loss']}", flush=True)
        else:
            elasticjob.report(step=step, samples=8, **told)
        world.barrier()
        if checkpoint.should_save(step):
            checkpoint.save(step)
        pause = 0.2 if illness == "spike" else 0.1  # what is known of it has to be newer than a checkpoint
        time.sleep(1.0 if illness == "sink" and step >= LATE else pause)
