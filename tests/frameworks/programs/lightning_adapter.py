"""A LightningModule under Trainer.fit with elasticjob's adapter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from record import Data, Record, make_model

from elasticjob.integrations.lightning import ElasticJobCallback, elastic_arguments, find_checkpoint

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
    **elastic_arguments(),
    max_steps=STEPS,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=200), ElasticJobCallback(folder)],
)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
trainer.fit(Module(), loader, ckpt_path=find_checkpoint(folder))
