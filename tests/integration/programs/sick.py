"""Trains with checkpoints in a folder, and falls sick.

    torchrun sick.py DIRECTORY ILLNESS

Each start writes the step from which it goes on to a file `starts`, by rank 0. The illnesses:
nan: the loss is NaN from step 20 on, until there is a file `cured`.
rank: the loss is NaN on the nodes that have a file of their name in the folder.
spike: once, from step 43 on, the loss is a hundred times as high, and so it stays.
sink: from step 250 on, each step takes ten times as long.
crash: it fails at step 17.
ecc: ranks on the nodes that have a file of their name write an error to their log, from then on.
logged: it reports nothing, and writes the loss, which is NaN from step 20 on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import elasticjob
from elasticjob.checkpoint import Checkpointer

EVERY, LAST = 10, 1_000_000
directory, illness = Path(sys.argv[1]), sys.argv[2]
node = directory / os.environ["ELASTICJOB_NODE_NAME"]
cured = directory / "cured"

with elasticjob.init("gloo") as world:
    model = torch.nn.Linear(4, 1)
    checkpoint = Checkpointer(directory / "saved", model, every=EVERY, keep=0, asynchronous=False)
    step = checkpoint.restore()
    if world.is_first:
        with (directory / "starts").open("a") as file:
            file.write(f"{step}\n")
    spiked = illness == "spike" and not cured.exists()
    while step < LAST:
        step += 1
        loss = 2.0 + 0.01 * (step % 7)
        if spiked and step >= 43:
            cured.touch()
            loss *= 100
        if (illness == "nan" and step >= 20 and not cured.exists()) or (illness == "rank" and node.exists()):
            loss = float("nan")
        if illness == "crash" and step == 17:
            raise ValueError("bad sample")
        if illness == "ecc" and node.exists():
            print("NVRM: Xid 48: GPU 0: Uncorrectable ECC error", file=sys.stderr, flush=True)
        if illness == "logged":
            print(f"step {step} loss={loss if step < 20 else float('nan')}", flush=True)
        else:
            elasticjob.report(step=step, samples=8, loss=loss)
        world.barrier()
        if checkpoint.should_save(step):
            checkpoint.save(step)
        time.sleep(1.0 if illness == "sink" and step >= 250 else 0.1)
