"""One process of a session that trains as people do on a GPU. SETTINGS["kind"] names the script.

`vision`: a CNN with batch norm and dropout, channels last, under autocast, workers that load into pinned memory,
SGD with a schedule for each step, clipping, averaged weights, and a `Checkpointer` beside it.
`gan`: two models, each with an optimizer, and a GradScaler in half precision; a frozen part is trained from a step on.
`compiled`: a transformer that `torch.compile` compiles, with AdamW and accumulated gradients, under DDP.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import elasticjob
from gpu.programs import train

DRY, SETTINGS, device = train.DRY, train.SETTINGS, train.device
SAMPLES, BATCH = 480, 48
UNFREEZE = 14  # the step from which on `gan` trains all of its generator


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Noise of a shape, and a class for each."""

    def __init__(self, *shape: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self._x = torch.randn(SAMPLES, *shape, generator=generator)
        self._y = torch.randint(0, 10, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index], self._y[index]


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16 if DRY else dtype)


class Script:
    """What the kinds have in common."""

    shape: tuple[int, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 - of the sampler
    model: Any
    optimizer: torch.optim.Optimizer
    extras: dict[str, Any] = {}  # noqa: RUF012

    def enter(self, run: elasticjob.Session) -> None:
        """A world begins."""

    def prepare(self, run: elasticjob.Session) -> None:
        """Before a step."""

    def step(self, run: elasticjob.Session, x: torch.Tensor, y: torch.Tensor) -> None:
        """In the block of a step."""
        raise NotImplementedError

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that the steps change."""
        yield from self.model.parameters()


class Vision(Script):
    shape = (3, 16, 16)
    options: dict[str, Any] = {"virtual_ranks": 6}  # noqa: RUF012

    def __init__(self) -> None:
        layers = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(32, 64, 3, stride=2)]
        head = [nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)]
        whole: Any = nn.Sequential(*layers, *head)
        self.model = whole.to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=10_000)
        ema: Any = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        self._average = AveragedModel(self.model, multi_avg_fn=ema, use_buffers=True)
        self.extras = {"schedule": self._schedule, "average": self._average}

    def enter(self, run: elasticjob.Session) -> None:
        """A Checkpointer of this world; where no rank has a state, the newest checkpoint."""
        folder = train.FOLDER / "checkpoints"
        self._keeper = elasticjob.Checkpointer(
            folder, self.model, self.optimizer, sampler=run.sampler, every=5, **self.extras
        )
        if run.committed < 0:
            run.committed = self._keeper.restore() - 1

    def step(self, run: elasticjob.Session, x: torch.Tensor, y: torch.Tensor) -> None:
        with autocast():
            loss = nn.functional.cross_entropy(run.model(x.to(memory_format=torch.channels_last)), y)
        train.pass_point("forward")
        run.backward(loss)
        train.pass_point("backward")
        if run.ends_step:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self._schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._average.update_parameters(self.model)
            if self._keeper.should_save(run.committed + 2):
                self._keeper.save(run.committed + 2)

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.state_dict().values()
        yield from self._average.state_dict().values()


class Both(nn.Module):
    """A generator, and what judges what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
        self.judge = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.make(x)
        return self.judge(made), made


class Gan(Script):
    shape = (16,)
    options: dict[str, Any] = {"virtual_ranks": 6}  # noqa: RUF012

    def __init__(self) -> None:
        self.model = Both().to(device)
        self.model.make[0].requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.model.make.parameters(), 1e-3)
        self._other = torch.optim.Adam(self.model.judge.parameters(), 2e-3)
        # The scale grows every other step: infinities come, and both optimizers skip those steps.
        self._scaler = torch.amp.GradScaler(device.type, 2.0**14, growth_interval=2)
        self.extras = {"other": self._other, "scaler": self._scaler}

    def prepare(self, run: elasticjob.Session) -> None:
        if run.committed + 1 >= UNFREEZE:
            self.model.make[0].requires_grad_(True)

    def step(self, run: elasticjob.Session, x: torch.Tensor, y: torch.Tensor) -> None:
        with autocast(torch.float16):
            told, made = run.model(x)
            wanted = (y % 2).to(told.dtype).unsqueeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(told, wanted) + nn.functional.mse_loss(made, x)
        train.pass_point("forward")
        run.backward(self._scaler.scale(loss))
        train.pass_point("backward")
        if run.ends_step:
            self._scaler.step(self.optimizer)
            train.pass_point("optimizer")
            self._scaler.step(self._other)
            self._scaler.update()
            self.optimizer.zero_grad()
            self._other.zero_grad()

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.parameters()
        yield torch.tensor([self._scaler.get_scale()], device=device)


class Compiled(Script):
    shape = (12, 32)
    options: dict[str, Any] = {"micro_batch_size": 8}  # noqa: RUF012

    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, dtype=torch.float64)
        inner = nn.Sequential(layer, nn.Flatten(), nn.Linear(12 * 32, 10, dtype=torch.float64)).to(device)
        can_build = not DRY and shutil.which("gcc") and importlib.util.find_spec("triton")
        backend = "inductor" if can_build else "aot_eager"
        train.say("compiler", backend=backend)
        whole: Any = torch.compile(inner, backend=backend)
        self.model = whole
        self.optimizer = torch.optim.AdamW(inner.parameters(), 1e-3)

    def step(self, run: elasticjob.Session, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(run.model(x.double()), y)
        train.pass_point("forward")
        run.backward(loss)
        train.pass_point("backward")
        if run.ends_step:
            self.optimizer.step()
            self.optimizer.zero_grad()


KINDS: dict[str, type[Script]] = {"vision": Vision, "gan": Gan, "compiled": Compiled}


def describe(tensors: Iterator[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The norm, a weighted sum, and a digest of the bits of all of them, still on the device."""
    flat = torch.cat([one.detach().to(device).double().reshape(-1) for one in tensors])
    index = torch.arange(flat.numel(), device=flat.device)
    return flat.norm(), (flat * (index % 97)).sum(), (flat.view(torch.int64) * (2 * index + 1)).sum()


def main() -> None:
    torch.set_num_threads(1)
    if not DRY:
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(SETTINGS["kind"] != "compiled")
    torch.manual_seed(2)
    script = KINDS[SETTINGS["kind"]]()
    sampler = elasticjob.ElasticDistributedSampler(SAMPLES, global_batch_size=BATCH, **script.options)
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if isinstance(script, Vision) else {}
    data = Samples(*script.shape)
    loader: Any = DataLoader(data, batch_sampler=sampler, pin_memory=not DRY, **workers)
    steps = train.Steps()
    last = SETTINGS.get("last", 10**9)

    def on_world(here: elasticjob.Session) -> None:
        script.enter(here)
        bits = describe(script.tensors())[2].item()
        train.say("world", generation=here.generation, rank=here.rank, step=here.committed, bits=bits)

    run = elasticjob.Session(
        model=script.model,
        optimizer=script.optimizer,
        sampler=sampler,
        backend=train.BACKEND,
        timeout=60.0,
        on_world=on_world,
        **script.extras,
    )
    for epoch in range(sampler.epoch, 10**6):
        sampler.set_epoch(epoch)
        for x, y in run.batches(loader):
            if run.committed >= last:
                time.sleep(60)  # its agent ends it
            batch = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            script.prepare(run)
            before, generation = run.committed, run.generation
            with run.step():
                script.step(run, *batch)
            if run.committed > before:
                values = describe(script.tensors())
                steps.queue(values, step=run.committed, generation=generation, rank=run.rank, world=run.world_size)
            steps.flush(wait=run.committed >= last)


if __name__ == "__main__":
    main()
