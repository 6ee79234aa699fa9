"""What is restored of optimizers whose parameters have few bits, as a line for each: its kind, and how it differs."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch

import elasticjob
from elasticjob.sessions.undo import Undo

KINDS = ("NAdam", "ASGD", "AdamW", "Adafactor")


def make(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4).to(torch.bfloat16)
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, dtype=torch.bfloat16)).square().sum().backward()
        optimizer.step()


def differ(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> str:
    found = []
    for mine, theirs in zip(one.state.values(), other.state.values(), strict=True):
        found += [n for n in mine if mine[n].dtype != theirs[n].dtype or not torch.equal(mine[n], theirs[n])]
    return ",".join(sorted({*found}))


def main() -> None:
    world = elasticjob.init()
    for kind in KINDS:
        model, optimizer = make(kind)
        train(model, optimizer)
        folder = Path(sys.argv[1]) / kind
        elasticjob.Checkpointer(folder, model, optimizer, asynchronous=False, critic=optimizer).save(3)
        again, restored = make(kind)
        critic = make(kind)[1]
        assert elasticjob.Checkpointer(folder, again, restored, asynchronous=False, critic=critic).restore() == 3
        print("checkpoint", kind, differ(restored, optimizer))
        print("further", kind, differ(critic, optimizer))
        before, undo = copy.deepcopy(optimizer), Undo()
        undo.keep(optimizer)
        optimizer.step()
        undo.take_back()
        print("step", kind, differ(optimizer, before))
    world.close()


main()
