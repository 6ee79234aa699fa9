"""Training that goes back, and scripts that end while a save is under way."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from elasticjob.checkpoint import Checkpointer
from elasticjob.errors import CheckpointFailedError
from worker.programs.phases import run_phase
from worker.programs.saying import say

ROOT = Path(sys.argv[1])


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters())


def go_back(keep: int) -> None:
    """All checkpoints are damaged, so training begins anew, and saves at lower steps."""
    folder = ROOT / f"keep {keep}"
    with elasticjob.init(timeout=60):
        model, optimizer = build()
        checkpoint = Checkpointer(folder, model, optimizer, keep=keep)
        for step in (100, 200, 300):
            checkpoint.save(step, wait=True)
        for data in folder.glob("step-*/*.distcp"):
            data.write_bytes(b"damaged")
        again = Checkpointer(folder, model, optimizer, keep=keep)
        say(f"damaged {keep}", again.restore())
        for step in (50, 100, 150):
            again.save(step, wait=True)
        say(f"steps {keep}", again.steps())
        say(f"last {keep}", Checkpointer(folder, model, optimizer, keep=keep).restore())


def end(name: str, *, destroys: bool) -> None:
    """The script ends without `wait()` while the save is under way."""
    world = elasticjob.init(timeout=60)
    model, optimizer = build()
    checkpoint, may_write = Checkpointer(ROOT / name, model, optimizer), threading.Event()
    real: Any = checkpoint._own_files

    def write_late(*arguments: Any) -> Any:
        assert may_write.wait(30)
        return real(*arguments)

    checkpoint._own_files = write_late  # type: ignore[method-assign, assignment]
    checkpoint.save(60)
    threading.Timer(0.3, may_write.set).start()
    if destroys:
        dist.destroy_process_group()
    else:
        world.close()
    thread = checkpoint._thread
    assert thread is not None
    thread.join()
    say(name, checkpoint.steps())


def lose_world(name: str, *, goes_on: bool) -> None:
    """The world breaks while the save of its last step is under way; the process keeps its memory, as in a session."""
    folder = ROOT / name

    def cut_off(*_: Any) -> Any:
        raise RuntimeError("Connection closed by peer")

    with elasticjob.init(timeout=60):
        model, optimizer = build()
        checkpoint = Checkpointer(folder, model, optimizer, every=100)
        checkpoint.save(100, wait=True)
        checkpoint._own_files = cut_off  # type: ignore[method-assign, assignment]
        checkpoint.save(200)
        checkpoint.finish()
    with elasticjob.init(timeout=60):
        again = Checkpointer(folder, model, optimizer, every=100)
        if goes_on:
            asked = [again.should_save(201)]
            again.save(201, wait=True)
            say(f"{name} asked", [*asked, again.should_save(202)])
        try:
            again.wait()
            say(f"{name} told", "")
        except CheckpointFailedError as error:
            say(f"{name} told", str(error))
        again.wait()
        say(f"{name} steps", again.steps())


def main() -> None:
    run_phase(1, 1, lambda: go_back(1))
    run_phase(2, 1, lambda: go_back(2))
    run_phase(5, 1, lambda: lose_world("lost", goes_on=True))
    run_phase(6, 1, lambda: lose_world("lost at the end", goes_on=False))
    run_phase(3, 2, lambda: end("closed", destroys=False))
    run_phase(4, 2, lambda: end("destroyed", destroys=True))


if __name__ == "__main__":
    main()
