"""A gang that saves, is damaged, restores at other sizes, and meets a full disk, a signal and SIGKILL."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import elasticjob
from elasticjob.checkpoint import Checkpointer, on_signal
from elasticjob.data.samplers import ElasticDistributedSampler, scale_learning_rate
from elasticjob.errors import CheckpointFailedError
from elasticjob.torchcompat import sharding
from worker.programs.phases import run_phase
from worker.programs.saying import say
from worker.programs.unpickling import forbid_unpickling


def build(kind: str) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model: Any = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 5))
    if kind == "fsdp":
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before torch 2.6
            from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()  # the same on every rank: the world size does not matter
        optimizer.step()
        optimizer.zero_grad()


def fingerprint(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    """A number for each complete tensor of the model and the optimizer."""
    numbers = []
    for parameter in model.parameters():
        for tensor in (parameter.data, *optimizer.state[parameter].values()):
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            numbers.append(round(float(whole.double().sum()), 5))
    return numbers


def save(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    sampler = ElasticDistributedSampler(100, global_batch_size=10)
    checkpoint = Checkpointer(directory, model, optimizer, sampler=sampler, keep=2, every=2)
    say(f"{kind} nothing yet", checkpoint.restore())
    scale_learning_rate(optimizer, 2.0)
    for step in range(1, 9):
        train(model, optimizer, 1)
        sampler.advance()
        if checkpoint.should_save(step):
            checkpoint.save(step)
            if step == 8:
                say(f"{kind} saved", fingerprint(model, optimizer))
                train(model, optimizer, 3)  # while the thread writes: what it writes must not change
    checkpoint.wait()
    say(f"{kind} steps", checkpoint.steps())


def restore(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    sampler = ElasticDistributedSampler(100, global_batch_size=10)
    checkpoint = Checkpointer(directory, model, optimizer, sampler=sampler)
    say(f"{Path(directory).name} step", checkpoint.restore())
    say(f"{Path(directory).name} restored", fingerprint(model, optimizer))
    say(f"{Path(directory).name} skipped", checkpoint.skipped)
    say(f"{Path(directory).name} used", sampler.used)
    scale_learning_rate(optimizer, 1.0)
    say(f"{Path(directory).name} rate", optimizer.param_groups[0]["lr"])


def full_disk(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    checkpoint = Checkpointer(directory, model, optimizer, keep=2)
    checkpoint.save(1, wait=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:  # the disk of one rank is full: a write past 100 bytes fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        checkpoint.save(2)
        checkpoint.wait()
    except CheckpointFailedError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        say("full", str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()  # rank 0 has waited too
    say("left", checkpoint.steps())
    say("remains", sorted(path.name for path in Path(directory).iterdir()))
    dist.barrier()  # the next save writes there, too
    checkpoint.save(3, wait=True)
    say("after", checkpoint.steps())


class Late:
    """Sends the signal while rank 0 saves it for the first time: after another rank's has decided the save."""

    sent = False

    def state_dict(self) -> dict[str, Any]:
        if not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGUSR1)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


def signalled(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    checkpoint = Checkpointer(directory, model, optimizer, late=Late())
    heard: list[bool] = []
    on_signal(lambda: heard.append(True))
    asked = []
    for step in range(1, 6):
        if step == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if checkpoint.should_save(step):
            asked.append(step)
            checkpoint.save(step)
    checkpoint.wait()
    say("asked", asked)
    say("heard", heard)


def no_directory(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    Path(directory).touch()
    try:
        Checkpointer(directory, model, optimizer)
    except CheckpointFailedError as error:
        say("no directory", str(error))


def save_forever(kind: str, directory: str) -> None:
    model, optimizer = build(kind)
    checkpoint = Checkpointer(directory, model, optimizer, keep=0)
    for step in range(1, 1000):
        checkpoint.save(step)


def in_world(*actions: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with elasticjob.init(timeout=60):
            for action in actions:
                action()

    return run


def damage(root: Path) -> None:
    """Copies of a valid folder, each with its newest checkpoint damaged in a different way."""
    for name in ("flipped", "truncated", "missing", "no-manifest", "unfinished", "all"):
        copy = root / name
        shutil.copytree(root / "ddp", copy)
        newest = copy / "step-00000008"
        largest = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
        if name == "flipped":
            data = bytearray(largest.read_bytes())
            data[len(data) // 2] ^= 1
            largest.write_bytes(data)
        elif name == "truncated":
            largest.write_bytes(largest.read_bytes()[:-10])
        elif name == "missing":
            largest.unlink()
        elif name == "no-manifest":
            (newest / "manifest.json").unlink()
        elif name == "unfinished":
            newest.rename(copy / ".tmp-step-00000008")
        else:
            for manifest in copy.glob("*/manifest.json"):
                manifest.write_text("{")


def main() -> None:
    root = Path(sys.argv[1])
    path = str(root)
    forbid_unpickling(but_by="torch/distributed/checkpoint/")
    kinds = ("fsdp", "ddp") if sharding.HAS_FSDP_ON_CPU else ("ddp",)
    run_phase(1, 4, in_world(*(partial(save, kind, f"{path}/{kind}") for kind in kinds)))
    if os.environ["RANK"] == "0":
        damage(root)
    folders = ("ddp", "flipped", "truncated", "missing", "no-manifest", "unfinished", "all")
    restores = [partial(restore, "ddp", f"{path}/{name}") for name in folders]
    if "fsdp" in kinds:
        restores.insert(0, partial(restore, "fsdp", f"{path}/fsdp"))
    run_phase(2, 3, in_world(*restores))
    run_phase(
        3,
        2,
        in_world(
            lambda: full_disk("ddp", f"{path}/full"),
            lambda: signalled("ddp", f"{path}/signalled"),
            lambda: no_directory("ddp", f"{path}/file"),
        ),
    )
    killed = root / "killed"
    run_phase(
        4, 2, in_world(lambda: save_forever("ddp", str(killed))), kill_when=lambda: len(list(killed.glob("step-*"))) > 3
    )
    run_phase(5, 1, in_world(lambda: restore("ddp", str(killed))))


if __name__ == "__main__":
    main()
