"""A session whose ranks do not make the same steps: HOW says what rank 0 (or with ALL=1, each rank) does in step 4.

outside, before, between, after: it raises an error outside of a block, before the forward pass, before the backward
pass or after the optimizer's step, and catches it there, outside of the block. inside: before the forward pass, and
catches it inside of the block; inside-steps: and lets its optimizer step without gradients. continue, break, return:
it leaves the block so. interrupt: KeyboardInterrupt, caught outside. finally: an error, and it closes its session.
short: its stream ends. stop: it leaves the loop after the step. slow: it is the last to come to the end, by seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob import Session
from worker.programs.backends import choose

HOW, ALL, KIND = os.environ["HOW"], "ALL" in os.environ, os.environ.get("KIND", "ddp")
STEP, LAST = 4, 8


class SkippedError(Exception):
    """What a script raises for a bad sample, and catches itself."""


def build(mesh: object) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    fully_shard(model, mesh=mesh)  # type: ignore[call-overload]
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Script:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        given = {"build": build} if KIND == "sharded" else {"model": model, "optimizer": optimizer}
        self.session = Session(**given, backend=choose())
        self.lines = Path(os.environ["OUT"], f"{os.getpid()}.jsonl")

    def is_uneven(self) -> bool:
        session = self.session
        return session.committed + 1 == STEP and session.generation == 1 and (ALL or session.rank == 0)

    def data(self) -> Iterator[torch.Tensor]:
        while self.session.committed < LAST:
            if HOW == "short" and self.is_uneven():
                return
            generator = torch.Generator().manual_seed(10 * self.session.committed + self.session.rank)
            yield torch.randn(6, 4, generator=generator)

    def raise_at(self, where: str) -> None:
        if where == HOW and self.is_uneven():
            raise SkippedError("a bad sample")
        if (HOW, where) == ("interrupt", "before") and self.is_uneven():
            raise KeyboardInterrupt

    def train(self) -> None:
        session = self.session
        for x in session.batches(self.data()):
            before = session.committed
            try:
                with session.step():
                    if HOW in ("continue", "break", "return") and self.is_uneven():
                        if HOW == "continue":
                            continue
                        if HOW == "break":
                            break
                        return
                    try:
                        self.raise_at("inside")
                        self.raise_at("inside-steps")
                        self.step(x)
                    except SkippedError:
                        if not HOW.startswith("inside"):
                            raise
                        if HOW == "inside-steps":
                            session.optimizer.step()
                            session.optimizer.zero_grad()
            except (SkippedError, KeyboardInterrupt):
                if HOW == "finally":
                    raise
            if session.committed > before:
                self.write()
            if HOW == "stop" and session.committed == STEP and (ALL or session.rank == 0) and session.generation == 1:
                return

    def step(self, x: torch.Tensor) -> None:
        session = self.session
        self.raise_at("before")
        self.raise_at("finally")
        loss = session.model(x).square().mean()
        self.raise_at("between")
        session.backward(loss)
        self.raise_at("applying")
        session.optimizer.step()
        session.optimizer.zero_grad()
        self.raise_at("after")

    def write(self) -> None:
        parameters = [one.full_tensor() if KIND == "sharded" else one for one in self.session.model.parameters()]
        norm = sum(float(one.detach().double().square().sum()) for one in parameters)
        row = {"step": self.session.committed, "rank": self.session.rank, "norm": norm}
        with self.lines.open("a") as lines:
            lines.write(json.dumps({**row, "generation": self.session.generation}) + "\n")


def main() -> None:
    script = Script()
    try:
        script.train()
        if HOW == "slow" and script.session.rank == 0:
            time.sleep(4)  # it saves, for example
    finally:
        script.session.close()
    if dist.is_initialized():
        sys.exit("the session has not left its world")


if __name__ == "__main__":
    main()
