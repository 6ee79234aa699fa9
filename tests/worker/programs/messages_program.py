"""A session whose ranks make the same steps, and do not enter equally many collectives in them: KIND says of what."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from elasticjob import Session
from worker.programs.backends import choose


def meet(kind: str, session: Session) -> None:
    if kind == "monitored" and dist.get_backend() == "gloo":
        dist.monitored_barrier()
    elif kind == "sends" and session.rank == 0:
        for other in range(1, session.world_size):
            dist.send(torch.ones(1), other)
    elif kind == "sends":
        dist.recv(torch.zeros(1), 0)


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer, backend=choose())
    while session.committed < 4:
        with session.step():
            session.backward(session.model(torch.ones(1, 2)).sum())
            meet(os.environ["SENDS"], session)
            optimizer.step()
    session.close()


main()
