"""A gang that takes snapshots in memory and is started again: as it was, without a pod, smaller, damaged and killed."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import elasticjob
from elasticjob.checkpoint import Checkpointer
from elasticjob.checkpoint.shelf import Shelf
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.torchcompat import sharding
from worker.programs.checkpoint_program import build, fingerprint, train
from worker.programs.phases import run_phase
from worker.programs.saying import say
from worker.programs.unpickling import forbid_unpickling

ROOT = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def open_all(
    kind: str, memory_every: int = 1, every: int = 0
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Checkpointer]:
    model, optimizer = build(kind)
    sampler = ElasticDistributedSampler(100, global_batch_size=10)
    directory = ROOT / f"{kind} files"
    checkpoint = Checkpointer(directory, model, optimizer, sampler=sampler, every=every, memory_every=memory_every)
    return model, optimizer, checkpoint


def save(kind: str, steps: int, every: int = 0) -> None:
    """Train from the beginning; print the state of the last step, and of the one before, and go on without saving."""
    model, optimizer, checkpoint = open_all(kind, every=every)
    for step in range(1, steps + 1):
        train(model, optimizer, 1)
        if checkpoint.should_save(step):
            checkpoint.save(step)
        say(f"{kind} at {step}", fingerprint(model, optimizer))
        checkpoint.wait()  # so that none is left out
    train(model, optimizer, 2)
    say(f"{kind} files", checkpoint.steps())


def restore(kind: str, name: str) -> None:
    model, optimizer, checkpoint = open_all(kind)
    say(f"{name} step", checkpoint.restore())
    say(f"{name} state", fingerprint(model, optimizer))
    say(f"{name} skipped", checkpoint.skipped)


def save_for_ever(kind: str) -> None:
    model, optimizer, checkpoint = open_all(kind)
    for step in range(1, 100_000):
        train(model, optimizer, 1)
        if checkpoint.should_save(step):
            checkpoint.save(step)


def check_killed(kind: str) -> None:
    """The state that was restored is that of exactly its step."""
    model, optimizer, checkpoint = open_all(kind)
    step = checkpoint.restore()
    say("killed step", step)
    say("killed state", fingerprint(model, optimizer))
    model, optimizer = build(kind)
    train_each(model, optimizer, step)
    say("killed expected", fingerprint(model, optimizer))


def train_each(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        train(model, optimizer, 1)


def change_outside() -> None:
    """A change that is not the optimizer's, while a snapshot is taken: it is of no single step."""
    model, optimizer, checkpoint = open_all("ddp")
    train(model, optimizer, 1)
    checkpoint.save(1)
    model.load_state_dict(model.state_dict())
    checkpoint.wait()
    say("changed", checkpoint.restore())


def without_memory() -> None:
    os.environ.pop("ELASTICJOB_MEMORY")
    model, optimizer, checkpoint = open_all("ddp", every=2)
    for step in (1, 2):
        train(model, optimizer, 1)
        if checkpoint.should_save(step):
            checkpoint.save(step)
    checkpoint.wait()
    say("without memory", checkpoint.restore())


def in_world(*actions: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # each rank is a pod
        with elasticjob.init(timeout=60):
            for action in actions:
                action()
                dist.barrier()

    return run


def pod(rank: int) -> Path:
    return ROOT / f"pod{rank}"


def main() -> None:
    for module in ("torch._dynamo", *(["torch.distributed.fsdp"] if sharding.HAS_FSDP_ON_CPU else [])):
        importlib.import_module(module)  # once, and not in each phase
    forbid_unpickling(but_by="torch/distributed/checkpoint/")
    os.environ |= {"ELASTICJOB_MEMORY": str(pod(RANK)), "LOCAL_RANK": "0"}
    run_phase(1, 3, in_world(lambda: save("ddp", 5)))
    run_phase(2, 3, in_world(lambda: restore("ddp", "same")))
    if RANK == 0:
        shutil.rmtree(pod(0))  # a new pod has rank 0
    run_phase(3, 3, in_world(lambda: restore("ddp", "newcomer")))
    run_phase(4, 2, in_world(lambda: restore("ddp", "smaller")))
    if RANK == 1:
        flip(pod(1))
    run_phase(5, 3, in_world(lambda: restore("ddp", "damaged")))
    run_phase(6, 3, in_world(change_outside, without_memory))
    shutil.rmtree(pod(RANK), ignore_errors=True)
    shutil.rmtree(ROOT / "ddp files", ignore_errors=True)
    run_phase(7, 2, in_world(lambda: save_for_ever("ddp")), kill_when=has_trained)
    run_phase(8, 3, in_world(lambda: check_killed("ddp")))
    if sharding.HAS_FSDP_ON_CPU:
        run_phase(9, 3, in_world(lambda: save("fsdp", 5, every=2)))
        run_phase(10, 3, in_world(lambda: restore("fsdp", "sharded")))
        if RANK == 2:
            shutil.rmtree(pod(2))
        run_phase(11, 3, in_world(lambda: restore("fsdp", "part lost")))
        if RANK in (0, 2):  # a part and its copy
            shutil.rmtree(pod(RANK), ignore_errors=True)
        run_phase(12, 3, in_world(lambda: restore("fsdp", "two lost")))


def has_trained() -> bool:
    return any(held.step >= 3 for folder in pod(0).glob("*") for held in Shelf(folder).held())


def flip(memory: Path) -> None:
    for file in memory.glob("*/*.data"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


if __name__ == "__main__":
    main()
