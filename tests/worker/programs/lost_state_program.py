"""Worlds of `elasticjob verify` whose ranks all lose their state at a kill, and the script that loses it.

Its optimizer waits for other ranks inside of its own step, once: a rank whose world is lost there has no whole state.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob import Session
from elasticjob.diagnose.verify import start_server
from elasticjob.diagnose.verify_worlds import Worlds

OUT, LAST, LOST = Path(sys.argv[1]), 5, 2


sessions: list[Session] = []


class Waiting(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        (session,) = sessions
        if session.generation == 1 and session.committed == LOST - 1:
            if session.rank == 0:
                Path(OUT, "inside").touch()
                time.sleep(3600)
            dist.all_reduce(torch.ones(1))


def train() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = Waiting(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer)
    sessions.append(session)
    while session.committed < LAST:
        with session.step():
            session.backward(session.model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
        Path(OUT, f"step-{session.committed}").touch()
    session.close()


def play() -> None:
    def count() -> int:
        return len(list(OUT.glob("step-*")))

    with start_server([__file__]) as server, Worlds(server, (__file__, str(OUT), "train"), OUT, count, 60.0) as worlds:
        worlds.start(2)
        while not Path(OUT, "inside").exists():
            time.sleep(0.01)
        worlds.change(2, kill=[0])
        worlds.wait_for(LAST + 2)
        print(f"{worlds.restarts} began again")


if __name__ == "__main__":
    train() if sys.argv[2:] else play()
