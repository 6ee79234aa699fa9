"""A loop with accelerate and elasticjob's adapter. The global batch is the same in every world."""

from __future__ import annotations

import os
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from record import Data, Record, make_model

from elasticjob.integrations.accelerate import Checkpoints

STEPS = int(sys.argv[1])
BATCH = 48  # of all ranks together: accelerate divides it

accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=1),
)
set_seed(1)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
checkpoints = Checkpoints(accelerator, os.environ["OUT"] + "/checkpoints", every=200)
at = checkpoints.load({"epoch": 0, "batch": 0, "step": 0})
record = Record(STEPS)
while at["step"] < STEPS:
    loader.set_epoch(at["epoch"])
    for batch in accelerator.skip_first_batches(loader, at["batch"]):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        at["step"], at["batch"] = at["step"] + 1, at["batch"] + 1
        record.step(at["step"], float(loss.detach()), at["epoch"], batch["index"].tolist())
        checkpoints.after_step(at, STEPS, loss=loss.detach())  # the process may end as soon as all ranks have saved
        if at["step"] >= STEPS:
            break
    else:
        at["epoch"], at["batch"] = at["epoch"] + 1, 0
accelerator.end_training()
