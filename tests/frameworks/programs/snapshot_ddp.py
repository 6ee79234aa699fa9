"""DDP in a `Trainer` with a snapshot after each epoch, the pattern of torch's examples for several nodes.

Two things differ, since pods share the folder: only rank 0 writes the snapshot, and renames it when it is whole. The
barrier before that is for the test, which counts the samples that the ranks have written down.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from record import Data, Record, make_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

STEPS = int(sys.argv[1])


class Trainer:
    def __init__(self, model: torch.nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, path: Path):
        self.model, self.loader, self.optimizer, self.path = model, loader, optimizer, path
        self.rank = int(os.environ["RANK"])
        self.epochs_run = self.steps_run = 0
        if path.exists():
            self.load_snapshot()
        self.model = DistributedDataParallel(self.model)
        self.record = Record(STEPS)

    def load_snapshot(self) -> None:
        snapshot = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run, self.steps_run = snapshot["EPOCHS_RUN"], snapshot["STEPS_RUN"]

    def save_snapshot(self) -> None:
        snapshot = {
            "MODEL_STATE": self.model.module.state_dict(),
            "EPOCHS_RUN": self.epochs_run,
            "STEPS_RUN": self.steps_run,
        }
        unfinished = self.path.with_suffix(".unfinished")
        torch.save(snapshot, unfinished)
        unfinished.rename(self.path)

    def run_batch(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def run_epoch(self) -> None:
        self.loader.sampler.set_epoch(self.epochs_run)
        for batch in self.loader:
            loss = self.run_batch(batch["x"], batch["y"])
            self.steps_run += 1
            self.record.step(self.steps_run, loss, self.epochs_run, batch["index"].tolist())
            if self.steps_run == STEPS:
                return
        self.epochs_run += 1

    def train(self) -> None:
        while self.steps_run < STEPS:
            self.run_epoch()
            dist.barrier()  # all ranks have written down what is saved now
            if self.rank == 0:
                self.save_snapshot()


def main() -> None:
    dist.init_process_group(backend="gloo")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = Data()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, Path(os.environ["OUT"]) / "snapshot.pt").train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
