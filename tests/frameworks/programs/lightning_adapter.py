"""A LightningModule under Trainer.fit with elasticjob's adapter."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint
from small_module import fit

from elasticjob.integrations.lightning import ElasticJobCallback, elastic_arguments, find_checkpoint

folder = Path(os.environ["OUT"]) / "checkpoints"
fit(
    find_checkpoint(folder),
    ModelCheckpoint(folder, every_n_train_steps=200),
    ElasticJobCallback(folder),
    **elastic_arguments(),
)
