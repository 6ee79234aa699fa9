"""FSDP2 with asynchronous checkpoints of one `Stateful`, as torchtitan and torch's documentation write them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from record import Data, Record, make_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1])
BATCH = 48  # of all ranks together


class Training(Stateful):
    """The model, the optimizer and the step."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
saving_group = dist.new_group(backend="gloo")  # the thread that saves must not meet the collectives of the steps
model = make_model()
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
training = Training(model, torch.optim.AdamW(model.parameters(), lr=0.01))
data, record = Data(), Record(STEPS)
folder = Path(os.environ["OUT"]) / "checkpoints"
# The metadata are written last: a folder without them is of a world that ended while it saved.
whole = sorted(file.parent for file in folder.glob("step-*/.metadata"))
if whole:
    dcp.load({"training": training}, checkpoint_id=whole[-1])
saving = None
while training.step < STEPS:
    epoch, first = divmod(training.step * BATCH, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    mine = order[first : first + BATCH][rank::size]
    loss = torch.nn.functional.mse_loss(model(data.x[mine]), data.y[mine])
    loss.backward()
    training.optimizer.step()
    training.optimizer.zero_grad()
    training.step += 1
    record.step(training.step, float(loss.detach()), epoch, mine.tolist())
    if training.step % 20 == 0:
        if saving is not None:
            saving.result()
        place = folder / f"step-{training.step:06d}"
        saving = dcp.async_save({"training": training}, checkpoint_id=place, process_group=saving_group)
if saving is not None:
    saving.result()
dist.destroy_process_group()
