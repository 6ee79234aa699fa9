"""A LightningModule under Trainer.fit. `num_nodes` and `devices` come from the environment: Lightning checks them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from record import Data, Record, make_model

STEPS = int(sys.argv[1])


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()
        self.record = None

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
        self.noted = (float(loss.detach()), batch["index"].tolist())
        return loss

    def on_train_batch_end(self, *args):
        self.record = self.record or Record(STEPS)
        self.record.step(self.trainer.global_step, self.noted[0], self.trainer.current_epoch, self.noted[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


folder = Path(os.environ["OUT"]) / "checkpoints"
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=STEPS,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=10, save_last=True)],
)
last = folder / "last.ckpt"
loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
trainer.fit(Module(), loader, ckpt_path=str(last) if last.exists() else None)
