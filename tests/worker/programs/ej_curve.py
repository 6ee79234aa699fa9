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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from backends import choose  # type: ignore[import-not-found]
from torch import nn
from torch.distributed import fsdp  # here: worlds that are forked share the import
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import elasticjob
from elasticjob import BatchGrowth, Checkpointer, ElasticDistributedSampler, Session, VirtualRanks

SAMPLES, GLOBAL_BATCH, VIRTUAL_RANKS = 218, 24, 8  # the last batch of an epoch has 2 samples: some ranks have none


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
    torch.manual_seed(1)
    model = Transformer()
    for layer in model.body:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


class Extras:
    """What else belongs to the training of a model that is not sharded, and its step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, sampler: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._growth: BatchGrowth | None = None
        if isinstance(model, Transformer):
            self._growth = BatchGrowth(optimizer, sampler, reference_batch_size=4, rule="adascale")
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        # It soon exceeds what a float can hold: steps are skipped, and the scale goes up and down.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)
        average = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        self.averages = AveragedModel(model, multi_avg_fn=average, use_buffers=True)

    def named(self) -> dict[str, Any]:
        named = {"scheduler": self.scheduler, "scaler": self.scaler, "averages": self.averages}
        return named | ({"growth": self._growth} if self._growth else {})

    def step(self) -> None:
        self.scaler.unscale_(self._optimizer)
        for parameter in self._model.parameters():  # as Langevin dynamics does: the same on all ranks
            if parameter.grad is not None:
                parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self._optimizer.zero_grad()
        self.scheduler.step()
        self.averages.update_parameters(self._model)

    def values(self) -> list[Any]:
        rates = [group["lr"] for group in self._optimizer.param_groups]
        grown = [self._growth.gain, self._growth.progress] if self._growth else []
        return [*self.averages.state_dict().values(), self.scaler.get_scale(), *rates, *grown]


def hash_state(model: nn.Module, optimizer: torch.optim.Optimizer, more: Sequence[Any] = ()) -> str:
    """Of the whole state, gathered if it is sharded: a separate collective."""
    digest = hashlib.sha256()
    slots = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    values = [*model.parameters(), *model.buffers(), *slots]
    shards = [value for value in values if hasattr(value, "to_local")]
    wholes = iter(gather(shards) if shards else [])
    for value in [*values, *more]:
        whole = next(wholes) if hasattr(value, "to_local") else torch.as_tensor(value)
        digest.update(whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def gather(values: list[Any]) -> list[torch.Tensor]:
    """Whole tensors from shards of their rows, with one collective: `full_tensor()` makes one for each."""
    mesh = values[0].device_mesh
    group = mesh.get_group(mesh.ndim - 1)
    size = dist.get_world_size(group)
    # As torch.chunk does: equal shares but the last.
    lengths = [[part.numel() for part in split(torch.empty(value.shape), size)] for value in values]
    mine = torch.cat([value.to_local().detach().reshape(-1) for value in values])
    longest = max(sum(one[rank] for one in lengths) for rank in range(size))
    rows = [mine.new_empty(longest) for _ in range(size)]
    dist.all_gather(rows, torch.cat([mine, mine.new_zeros(longest - mine.numel())]), group=group)
    parts = []
    for rank, row in enumerate(rows):
        counts = [one[rank] for one in lengths]
        parts.append(torch.split(row, [*counts, longest - sum(counts)]))
    return [torch.cat([part[index] for part in parts]) for index in range(len(values))]


def split(value: torch.Tensor, size: int) -> list[torch.Tensor]:
    parts = list(value.chunk(size))
    return [*parts, *[value[:0]] * (size - len(parts))]


class Log:
    """Writes the steps of one process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps({"t": time.time(), "pid": os.getpid()} | line) + "\n").encode())


def train_session(args: argparse.Namespace, data: Any, log: Log) -> None:
    sampler = ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH, virtual_ranks=VIRTUAL_RANKS)
    loader = DataLoader(data, batch_sampler=sampler)
    checkpoint: Checkpointer | None = None

    def on_world(here: Session) -> None:
        nonlocal checkpoint
        if args.save_every == 0:
            return
        others = extras.named() if extras else {}
        checkpoint = Checkpointer(args.checkpoints, here.model, here.optimizer, sampler=sampler, **others)
        if here.committed < 0:  # nobody in this world has a state
            here.committed = checkpoint.restore() - 1

    more: dict[str, Any] = {"build": build, "shards": args.shards, "copy_every": args.copy_every}
    extras: Extras | None = None
    if args.model != "fsdp":
        model, optimizer = make_model(args.model)
        torch.manual_seed(os.getpid())  # newcomers differ until they get the state
        extras = Extras(model, optimizer, sampler)
        more = {"model": model, "optimizer": optimizer, **extras.named()}
    session = Session(sampler=sampler, on_world=on_world, backend=choose(), **more)
    for epoch in range(sampler.epoch, 1_000_000):
        sampler.set_epoch(epoch)
        for inputs, labels in session.batches(loader):
            line: dict[str, Any] = {}
            with session.step():
                loss = nn.functional.cross_entropy(session.model(inputs), labels)
                session.backward(extras.scaler.scale(loss) if extras else loss)
                if session.ends_step:
                    made = session.committed + 2
                    line = {"step": made - 1, "generation": session.generation, "rank": session.rank}
                    line |= {"world": session.world_size, "loss": session.loss}
                    if extras:
                        assert session.loss is not None
                        line["loss"] = session.loss / extras.scaler.get_scale()
                        extras.step()
                    else:
                        session.optimizer.step()
                        session.optimizer.zero_grad()
                    line["hash"] = hash_state(session.model, session.optimizer, extras.values() if extras else ())
                    if checkpoint is not None and made % args.save_every == 0:
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
        sampler = ElasticDistributedSampler(
            data, global_batch_size=GLOBAL_BATCH, virtual_ranks=VIRTUAL_RANKS, micro_batch_size=2
        )
        extras = Extras(model, optimizer, sampler)
        checkpoint = Checkpointer(args.checkpoints, model, optimizer, sampler=sampler, **extras.named())
        step = checkpoint.restore()
        ranks = VirtualRanks(model, sampler, growth=extras.named().get("growth"))
        loader = DataLoader(data, batch_sampler=sampler, num_workers=args.workers)
        while step < args.steps:
            for micro, (inputs, labels) in sampler.steps(loader):
                with ranks.turn(micro):
                    ranks.backward(extras.scaler.scale(nn.functional.cross_entropy(model(inputs), labels)))
                if not micro.ends_step:
                    continue
                assert ranks.loss is not None
                line: dict[str, Any] = {"step": step, "rank": world.rank, "world": world.world_size}
                line["loss"] = ranks.loss / extras.scaler.get_scale()
                extras.step()
                log.write(**line, generation=world.generation, hash=hash_state(model, optimizer, extras.values()))
                step += 1
                if step in args.save_at:
                    checkpoint.save(step, wait=True)
                if step == args.steps:
                    return
            sampler.set_epoch(sampler.epoch + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("cnn", "transformer", "fsdp"), default="cnn")
    parser.add_argument("--shards", type=int, default=2, help="of fsdp: ranks that share a copy")
    parser.add_argument("--copy-every", type=int, default=0, help="of fsdp: steps, in the memory of other pods")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--restarts", action="store_true")
    parser.add_argument("--save-every", type=int, default=10, help="in a session; 0: never")
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
