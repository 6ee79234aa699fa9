"""Writes to OUT, once a world, the context of a script's tracer: OUT [session]. The one without ends with OUT/stop."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import elasticjob

out = Path(sys.argv[1])


def tell() -> None:
    with (out / "contexts").open("a") as file:
        file.write(f"{os.environ['ELASTICJOB_GENERATION']} {os.environ.get('TRACEPARENT')} {os.getpid()}\n")


if sys.argv[2:] == ["session"]:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = elasticjob.Session(model=model, optimizer=optimizer, on_world=lambda session: tell())
    while True:
        with session.step():
            session.backward(session.model(torch.ones(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.05)
else:
    tell()
    while not (out / "stop").exists():
        time.sleep(0.05)
