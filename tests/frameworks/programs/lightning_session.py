"""Lightning's Trainer in a session: no process is started again at a change, and a loss repeats one step."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint
from record import Data
from small_module import fit
from torch.utils.data import DataLoader

from elasticjob import ElasticDistributedSampler
from elasticjob.integrations.lightning import find_checkpoint
from elasticjob.integrations.lightning_session import session_arguments

folder, data = Path(os.environ["OUT"]) / "checkpoints", Data()
sampler = ElasticDistributedSampler(data, global_batch_size=48, micro_batch_size=48)
fit(
    find_checkpoint(folder),
    ModelCheckpoint(folder, every_n_train_steps=200),
    loader=DataLoader(data, batch_sampler=sampler),
    **session_arguments(),
)
