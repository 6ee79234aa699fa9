"""JAX across processes by restart: `jax.distributed.initialize` from the variables that torchrun sets."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from record import Data, Record
from torch.distributed import TCPStore

STEPS = int(sys.argv[1])
BATCH = 48  # of all ranks together

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Rank 0 chooses the coordinator's port and tells it in torch's store: nobody keeps the one after MASTER_PORT free.
host, key = os.environ["MASTER_ADDR"], f"jax/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
store = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
if rank == 0:
    with socket.socket() as free:
        free.bind(("", 0))  # on all addresses, as the coordinator will
        store.set(key, str(free.getsockname()[1]))
coordinator = f"{host}:{store.get(key).decode()}"
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_enable_preemption_service", False)  # it catches SIGTERM, and a change would wait for the grace
jax.distributed.initialize(coordinator, num_processes=size, process_id=rank)
data, record = Data(), Record(STEPS)
x, y = data.x.numpy(), data.y.numpy()
snapshot = Path(os.environ["OUT"]) / "snapshot.npz"
weights, step = np.zeros((x.shape[1], 1), np.float32), 0
if snapshot.exists():
    with np.load(snapshot) as saved:
        weights, step = saved["weights"], int(saved["step"])


@jax.jit
def gradient(weights, x, y):
    return jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(weights)


while step < STEPS:
    epoch, first = divmod(step * BATCH, len(data))
    order = np.random.default_rng(epoch).permutation(len(data))
    mine = order[first : first + BATCH][rank::size]
    loss, mine_gradient = gradient(weights, x[mine], y[mine])
    weights = weights - 0.02 * np.asarray(multihost_utils.process_allgather(mine_gradient)).mean(axis=0)
    step += 1
    record.step(step, float(loss), epoch, mine.tolist())
    if step % 10 == 0 and rank == 0:
        unfinished = snapshot.with_name("unfinished.npz")
        np.savez(unfinished, weights=weights, step=step)
        unfinished.rename(snapshot)
