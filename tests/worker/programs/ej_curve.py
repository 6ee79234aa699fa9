"""A training loop with virtual ranks: a CNN with batch norm, dropout and augmentation, or a transformer, also sharded.

Every committed step is one JSON line with a hash of parameters, buffers and optimizer, and the loss. It runs in a
session, or (`--restarts`) as a script that is stopped and started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elasticjob

SAMPLES, GLOBAL_BATCH, VIRTUAL_RANKS = 232, 24, 8  # the last batch of an epoch is smaller


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noise with a bright corner, which is the label; shifted at random in each epoch."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        label = item % 4
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(item))
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 1.0
        if random.random() < 0.5:  # augmentation
            image = image.roll(random.choice((-1, 1)), 2)
        return image + 0.1 * torch.randn(image.shape), label


class Texts(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Counting, from a start and by a step that differ by sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = (item + torch.arange(13) * (1 + item % 3)) % 16
        return numbers[:-1], numbers[1:]


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 4),
    )  # fmt: skip


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(16, 16)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 16)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(numbers)
        for layer in self.body:
            hidden = layer(hidden)
        out: torch.Tensor = self.head(hidden)
        return out.transpose(1, 2).contiguous()


def make_model(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    if name == "cnn":
        cnn = make_cnn()
        return cnn, torch.optim.SGD(cnn.parameters(), lr=0.05, momentum=0.9)
    model = Transformer()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def build(mesh: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = Transformer()
    for layer in model.body:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def hash_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of the whole state, gathered if it is sharded: a separate collective."""
    digest = hashlib.sha256()
    slots = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    for value in [*model.parameters(), *model.buffers(), *slots]:
        whole = value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)
        digest.update(whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


class Log:
    """Writes the steps of one process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps({"t": time.time(), "pid": os.getpid()} | line) + "\n").encode())


def train_session(args: argparse.Namespace, data: Any, log: Log) -> None:
    sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH, virtual_ranks=VIRTUAL_RANKS)
    loader = DataLoader(data, batch_sampler=sampler)
    checkpoint: elasticjob.Checkpointer | None = None

    def on_world(here: elasticjob.Session) -> None:
        nonlocal checkpoint
        checkpoint = elasticjob.Checkpointer(args.checkpoints, here.model, here.optimizer, sampler=sampler)
        if here.committed < 0:  # nobody in this world has a state
            here.committed = checkpoint.restore() - 1

    more: dict[str, Any] = {"build": build, "shards": 2, "on_world": on_world}
    if args.model != "fsdp":
        model, optimizer = make_model(args.model)
        torch.manual_seed(os.getpid())  # newcomers differ until they get the state
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        more = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    session = elasticjob.Session(sampler=sampler, **more)
    for epoch in range(sampler.epoch, 1_000_000):
        sampler.set_epoch(epoch)
        for inputs, labels in session.batches(loader):
            line: dict[str, Any] = {}
            with session.step():
                session.backward(nn.functional.cross_entropy(session.model(inputs), labels))
                if session.ends_step:
                    if args.model != "fsdp":
                        torch.nn.utils.clip_grad_norm_(session.model.parameters(), 1.0)
                    session.optimizer.step()
                    session.optimizer.zero_grad()
                    if args.model != "fsdp":
                        more["scheduler"].step()
                    made = session.committed + 2
                    line = {"step": made - 1, "generation": session.generation, "rank": session.rank}
                    line |= {"world": session.world_size, "loss": session.loss}
                    line["hash"] = hash_state(session.model, session.optimizer)
                    if checkpoint is not None and made % 10 == 0:
                        checkpoint.save(made)
            if line and session.committed == line["step"]:
                log.write(**line)
                time.sleep(args.step_seconds)
            if session.committed + 1 >= args.steps:
                break
        if session.committed + 1 >= args.steps:
            break
    if checkpoint is not None:
        checkpoint.wait()
    session.close()


def train_restarts(args: argparse.Namespace, data: Any, log: Log) -> None:
    with elasticjob.init(threads=1) as world:
        model, optimizer = make_model(args.model)
        sampler = elasticjob.ElasticDistributedSampler(
            data, global_batch_size=GLOBAL_BATCH, virtual_ranks=VIRTUAL_RANKS, micro_batch_size=2
        )
        checkpoint = elasticjob.Checkpointer(args.checkpoints, model, optimizer, sampler=sampler)
        step = checkpoint.restore()
        ranks = elasticjob.VirtualRanks(model, sampler)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=args.workers)
        while step < args.steps:
            for micro, (inputs, labels) in sampler.steps(loader):
                with ranks.turn(micro):
                    ranks.backward(nn.functional.cross_entropy(model(inputs), labels))
                if not micro.ends_step:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                line = {"step": step, "rank": world.rank, "world": world.world_size, "loss": ranks.loss}
                log.write(**line, generation=world.generation, hash=hash_state(model, optimizer))
                step += 1
                if step in args.save_at:
                    checkpoint.save(step, wait=True)
                if step == args.steps:
                    return
            sampler.set_epoch(sampler.epoch + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("cnn", "transformer", "fsdp"), default="cnn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--restarts", action="store_true")
    parser.add_argument("--save-at", type=int, nargs="*", default=[])
    parser.add_argument("--workers", type=int, default=0, help="of the data loader, with --restarts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    run: Callable[..., None] = train_restarts if args.restarts else train_session
    run(args, Images() if args.model == "cnn" else Texts(), Log(args.out))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
