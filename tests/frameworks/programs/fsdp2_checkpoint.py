"""FSDP2 with torch.distributed.checkpoint: the recipe of torch's own documentation, without elasticjob."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from record import Data, Record, make_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1])
BATCH = 48  # of all ranks together

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
model = make_model()
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
data, record = Data(), Record(STEPS)
folder = Path(os.environ["OUT"]) / "checkpoints"
step = 0
saved = sorted(folder.glob("step-??????"))
if saved:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.zeros((), dtype=torch.int64)}
    dcp.load(state, checkpoint_id=saved[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step = int(state["step"])
while step < STEPS:
    epoch, first = divmod(step * BATCH, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    mine = order[first : first + BATCH][rank::size]
    loss = torch.nn.functional.mse_loss(model(data.x[mine]), data.y[mine])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    record.step(step, float(loss.detach()), epoch, mine.tolist())
    if step % 10 == 0:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": torch.tensor(step)}
        dcp.save(state, checkpoint_id=folder / "unfinished")
        if rank == 0:
            (folder / "unfinished").rename(folder / f"step-{step:06d}")
dist.destroy_process_group()
