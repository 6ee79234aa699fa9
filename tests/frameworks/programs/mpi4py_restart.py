"""A program of mpi4py with one changed line: gradients are added by MPI, and state comes from a checkpoint file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from record import Data, Record

from elasticjob.mpi import MPI

STEPS, BATCH = int(sys.argv[1]), 48  # the batch of all ranks together

world = MPI.COMM_WORLD
assert (world.rank, world.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
data, record = Data(), Record(STEPS)
x, y = data.x.numpy().astype(np.float64), data.y.numpy().astype(np.float64)
snapshot = Path(os.environ["OUT"]) / "snapshot.npz"
weights, step = np.zeros((x.shape[1], 1)), 0
if world.rank == 0 and snapshot.exists():
    with np.load(snapshot) as saved:
        weights, step = saved["weights"], int(saved["step"])
weights, step = world.bcast((weights, step))

while step < STEPS:
    epoch, first = divmod(step * BATCH, len(data))
    mine = np.random.default_rng(epoch).permutation(len(data))[first : first + BATCH][world.rank :: world.size]
    error = x[mine] @ weights - y[mine]
    gradient, loss = 2 * x[mine].T @ error / BATCH, np.array([(error**2).sum() / BATCH])
    world.Allreduce(MPI.IN_PLACE, gradient)
    world.Allreduce(MPI.IN_PLACE, loss)
    weights -= 0.02 * gradient
    step += 1
    record.step(step, loss.item(), epoch, mine.tolist())
    if step % 10 == 0:
        world.Barrier()  # all ranks have written down what is saved now
        if world.rank == 0:
            unfinished = snapshot.with_name("unfinished.npz")
            np.savez(unfinished, weights=weights, step=step)
            unfinished.rename(snapshot)
