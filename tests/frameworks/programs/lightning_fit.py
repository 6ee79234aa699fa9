"""A LightningModule under Trainer.fit. `num_nodes` and `devices` come from the environment: Lightning checks them."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint
from small_module import fit

folder = Path(os.environ["OUT"]) / "checkpoints"
last = folder / "last.ckpt"
fit(
    str(last) if last.exists() else None,
    ModelCheckpoint(folder, every_n_train_steps=10, save_last=True),
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
)
