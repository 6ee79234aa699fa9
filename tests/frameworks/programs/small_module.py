"""A small LightningModule which records every step. Nothing of elasticjob."""

from __future__ import annotations

import sys

import lightning
import torch
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

    def on_train_batch_end(self, outputs, *args):
        if not outputs:
            return  # another rank of the session has made this step
        self.record = self.record or Record(STEPS)
        self.record.step(self.trainer.global_step, self.noted[0], self.trainer.current_epoch, self.noted[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def fit(checkpoint, *callbacks, loader=None, **more):
    """Train to STEPS, from this checkpoint if it is not None. `more`: the Trainer's arguments for this world."""
    loader = loader or torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"accelerator": "cpu", "strategy": "ddp", **more},
    )
    trainer.fit(Module(), loader, ckpt_path=checkpoint)
