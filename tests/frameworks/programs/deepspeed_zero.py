"""DeepSpeed on the CPU, started by torchrun: `deepspeed_zero.py STEPS STAGE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deepspeed
import torch
from record import Data, Record, make_model

STEPS, STAGE = int(sys.argv[1]), int(sys.argv[2])
SIZE = int(os.environ["WORLD_SIZE"])
BATCH = 48  # of all ranks together

# On the CPU, DeepSpeed compiles an extension for ranks of one machine, which torchrun's ranks never use.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
model = make_model()
deepspeed.init_distributed(dist_backend="gloo")
engine, _, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // SIZE,
        "optimizer": {"type": "SGD", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": STAGE},
        "zero_allow_untested_optimizer": True,
    },
)
data, record = Data(), Record(STEPS)
folder = Path(os.environ["OUT"]) / "checkpoints"
step = 0
rank = int(os.environ["RANK"])
if (folder / "latest").exists():
    # The states of the optimizer are cut for the world that saved them: only the weights fit every size.
    latest = (folder / "latest").read_text().strip()
    fits = (folder / f"size-of-{latest}").read_text() == str(SIZE)
    _, client = engine.load_checkpoint(str(folder), load_optimizer_states=fits, load_module_only=not fits)
    step = client["step"]
while step < STEPS:
    epoch, first = divmod(step * BATCH, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    mine = order[first : first + BATCH][rank::SIZE]
    loss = torch.nn.functional.mse_loss(engine(data.x[mine]), data.y[mine])
    engine.backward(loss)
    engine.step()
    step += 1
    record.step(step, float(loss.detach()), epoch, mine.tolist())
    if step % 10 == 0:
        if rank == 0:
            # One file a checkpoint: a rank that is killed here leaves `latest` as it is.
            folder.mkdir(exist_ok=True)
            (folder / f"size-of-step{step}").write_text(str(SIZE))
        engine.save_checkpoint(str(folder), tag=f"step{step}", client_state={"step": step})
