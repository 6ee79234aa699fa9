"""A session whose script ends while the runtime still does something in threads of its own.

Variables: BACKEND, HOW the script ends (well, exit, error, interrupt), WHILE (abort: the communicators of a lost world
are aborted, slowly; copy: shards are sent).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NoReturn

import torch

from elasticjob.sessions.session import Session
from worker import fake_nccl

HOW, WHILE = os.environ["HOW"], os.environ["WHILE"]


class Large:
    """Something that takes time to be freed, when the interpreter ends."""

    def __del__(self) -> None:
        time.sleep(2)


def end() -> NoReturn:
    if HOW == "exit":
        raise SystemExit(3)
    if HOW == "error":
        raise LookupError("the script's own error")
    if HOW == "interrupt":
        raise KeyboardInterrupt
    sys.exit()


def build(mesh: Any) -> tuple[Any, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(512, 512)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def slow_copies() -> None:
    """The peers of a copy are slow to receive it."""
    from elasticjob.collectives import deliveries

    receive = deliveries.receive

    def receive_late(*given: Any) -> Any:
        fake_nccl.sleep_in_torch(1.0)
        return receive(*given)

    deliveries.receive = receive_late  # type: ignore[assignment]


def main() -> None:
    if WHILE == "copy":
        slow_copies()
        session = Session(build=build, copy_every=1, backend=os.environ["BACKEND"])
    else:
        model = torch.nn.Linear(8, 8)
        session = Session(model, torch.optim.SGD(model.parameters(), lr=0.1), backend=os.environ["BACKEND"])
    for _ in range(100_000):
        if session.rank == 2 and session.committed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        with session.step():
            session.backward(session.model(torch.ones(4, 512 if WHILE == "copy" else 8)).sum())
            session.optimizer.step()
        if session.generation == 2 or (WHILE == "copy" and session.committed == 5):
            end()


if __name__ == "__main__":
    torch.large = Large()  # type: ignore[attr-defined]
    main()
