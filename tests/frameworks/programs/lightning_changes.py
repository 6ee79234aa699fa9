"""Lightning's Trainer in a session, for random changes: every committed step is one JSON line with a hash.

The lines are those of `tests/worker/programs/ej_session.py`, and so are the sizes of its data and its batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import ElasticDistributedSampler
from elasticjob.integrations.lightning_session import session_arguments

SAMPLES, GLOBAL_BATCH = 960, 48


class Module(lightning.LightningModule):
    def __init__(self, out, seconds):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        self.lines = (out / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self.seconds = seconds

    def training_step(self, batch, number):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

    def on_train_batch_end(self, outputs, *args):
        session = self.trainer.strategy.session
        sampler = self.trainer.train_dataloader.positions
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        line = {
            "t": time.time(),
            "step": session.committed,
            "rank": session.rank,
            "world": session.world_size,
            "generation": session.generation,
            "pid": os.getpid(),
            "hash": digest.hexdigest()[:16],
            "used": [sampler.epoch, sampler.used],
        }
        if outputs:  # else another rank has made this step
            self.lines.write(json.dumps(line) + "\n")
        time.sleep(self.seconds)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 8)
    data = TensorDataset(x, (x @ torch.randn(8, 1)).tanh())
    sampler = ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH, micro_batch_size=GLOBAL_BATCH)
    torch.manual_seed(2 + os.getpid())  # newcomers differ until they get the state
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **session_arguments(),
    )
    trainer.fit(Module(args.out, args.step_seconds), DataLoader(data, batch_sampler=sampler))


if __name__ == "__main__":
    main()
