"""A plain loop with accelerate, started by torchrun."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from record import Data, Record, make_model

STEPS = int(sys.argv[1])
folder = Path(os.environ["OUT"]) / "checkpoints"


class Progress:
    """What is saved beside the model."""

    def __init__(self):
        self.epoch = self.batch = self.step = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


accelerator = Accelerator(cpu=not torch.cuda.is_available())
set_seed(1)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
progress, record = Progress(), Record(STEPS)
accelerator.register_for_checkpointing(progress)
saved = sorted(folder.glob("step-??????"))
if saved:
    accelerator.load_state(str(saved[-1]))
while progress.step < STEPS:
    loader.set_epoch(progress.epoch)
    for batch in accelerator.skip_first_batches(loader, progress.batch):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        record.step(progress.step, float(loss.detach()), progress.epoch, batch["index"].tolist())
        if progress.step % 10 == 0:
            unfinished = folder / "unfinished"
            accelerator.save_state(str(unfinished))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                unfinished.rename(folder / f"step-{progress.step:06d}")
                for old in sorted(folder.glob("step-??????"))[:-3]:
                    shutil.rmtree(old)
        if progress.step >= STEPS:
            break
    else:
        progress.epoch, progress.batch = progress.epoch + 1, 0
accelerator.end_training()
