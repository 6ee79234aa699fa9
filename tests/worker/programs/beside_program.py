"""Snapshots of what is on a device, which copies when it comes to it: here a stand-in that copies as late as it may."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

import elasticjob
from elasticjob.checkpoint import Checkpointer
from worker.programs.phases import run_phase
from worker.programs.saying import say

ROOT = Path(sys.argv[1])


class LateLane:
    """A device that begins with the copies when the training is about to overwrite what they read, or later."""

    def __init__(self, *, registers: bool = True) -> None:
        self.registers = registers
        self.registered: set[int] = set()
        self.capturing = False
        self.held_back = 0
        self.early = 0  # copies that were made before anything waited for them
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._done = threading.Event()
        self._done.set()

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() > 1

    def register(self, data: torch.Tensor) -> bool:
        if self.registers:
            self.registered.add(data.data_ptr())
            weakref.finalize(data, self.registered.remove, data.data_ptr())
        return self.registers

    def queue(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._copies = list(copies)
        self._done.clear()

    def hold_back(self) -> None:
        with torch.no_grad():
            for target, tensor in self._copies:
                target.copy_(tensor)
        self.held_back += len(self._copies)
        self._copies = []
        self._done.set()

    def wait(self) -> None:
        assert self._done.wait(60)

    def take_stalls(self) -> float:
        return 0.0

    def is_capturing(self) -> bool:
        return self.capturing


class Training:
    """A model with a buffer that changes in each forward pass."""

    def __init__(self, name: str, lane: LateLane | None) -> None:
        torch.manual_seed(5)
        self.layer = nn.Linear(4, 3)
        self.model = nn.Sequential(self.layer, nn.BatchNorm1d(3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.checkpoint = Checkpointer(ROOT / name, self.model, self.optimizer, memory_every=1)
        memory = self.checkpoint._memory
        assert memory is not None
        self.memory = memory
        if lane is not None:
            self.memory.use_lane(lane)
        self.step = 0

    def forward(self) -> None:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(self.step))
        self.model(x).square().mean().backward()

    def train(self) -> None:
        self.step += 1
        self.forward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self) -> bool:
        """Whether a snapshot is due and taken."""
        due = self.checkpoint.should_save(self.step)
        if due:
            self.checkpoint.save(self.step)
        return due

    def contents(self) -> str:
        optimizer = {key: value.tolist() for key, value in self.optimizer.state[self.layer.weight].items()}
        return str(({key: value.tolist() for key, value in self.model.state_dict().items()}, optimizer))


def restored(name: str) -> tuple[int, str]:
    fresh = Training(name, None)
    return fresh.checkpoint.restore(), fresh.contents()


def beside() -> None:
    lane = LateLane()
    training = Training("beside", lane)
    training.train()
    training.memory.wait()
    say("prepared", len(lane.registered))
    training.train()
    say("taken", training.save())
    expected = training.contents()
    training.forward()  # changes the buffers, before the copies of the parameters have begun
    assert training.memory.thread is not None
    training.memory.thread.join(1.0)  # it waits for the device
    say("busy", [training.memory.is_busy, lane.held_back])
    training.optimizer.step()
    say("held back", lane.held_back > 0)
    training.memory.wait()
    say("beside", restored("beside") == (2, expected))
    training.checkpoint.restore()  # forgets what others have
    training.memory.keep_only("", 0)
    say("unregistered", len(lane.registered))


def outside() -> None:
    """Something else than the optimizer changes a parameter before it is copied."""
    lane = LateLane()
    training = Training("outside", lane)
    training.train()
    training.memory.wait()
    training.train()
    training.save()
    with torch.no_grad():
        training.layer.weight.add_(1)
    training.train()
    training.memory.wait()
    say("outside", restored("outside")[0])


def unregistered() -> None:
    training = Training("plain", LateLane(registers=False))
    training.train()
    training.memory.wait()
    training.train()
    training.save()
    expected = training.contents()
    training.train()
    training.memory.wait()
    say("plain", restored("plain") == (2, expected))


def captured() -> None:
    """The script records its step: from then on no hook is called in it."""
    lane = LateLane()
    training = Training("captured", lane)
    training.train()
    training.memory.wait()
    lane.capturing = True
    training.train()
    training.save()
    expected = training.contents()
    training.memory.wait()
    say("captured", [lane.held_back, restored("captured") == (2, expected)])


def main() -> None:
    os.environ |= {"ELASTICJOB_MEMORY": str(ROOT / "memory"), "LOCAL_RANK": "0"}

    def run() -> None:
        with elasticjob.init(timeout=60):
            cases: list[Callable[[], None]] = [beside, outside, unregistered, captured]
            for case in cases:
                case()

    run_phase(1, 1, run)


if __name__ == "__main__":
    main()
