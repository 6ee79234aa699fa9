"""Ranks of a session that saves every fourth step. Rank 0 dies in the save of step 4, as `DIES` says: where the ranks
agree on it (`asking`), or when its files are written (`writing`). In the next world rank 0 dies in its first step, if
`TWICE` is set. So those that are left in the last one may never have begun that save.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elasticjob import Session
from elasticjob.checkpoint import Checkpointer

LAST, EVERY, DIES = 6, 4, os.environ["DIES"]
OUT = Path(os.environ["OUT"])

torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoint: Any = None


def die(*_: Any) -> None:
    time.sleep(0.2)  # the other rank has written its part meanwhile
    os._exit(9)


def on_world(here: Session) -> None:
    global checkpoint  # noqa: PLW0603
    checkpoint = Checkpointer(OUT / "saved", model, optimizer, every=EVERY)
    if here.generation == 1 and here.rank == 0 and DIES == "writing":
        checkpoint._own_files = die


session = Session(model=model, optimizer=optimizer, on_world=on_world)
while session.committed < LAST - 1:
    while session.generation == 1 and session.committed == EVERY - 2 and not (OUT / "told").exists():
        time.sleep(0.01)
    with session.step():
        loss = session.model(torch.ones(2, 4)).square().mean()
        if session.generation == 2 and session.rank == 0 and "TWICE" in os.environ:
            os._exit(9)
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        made = session.committed + 2
        if session.generation == 1 and session.rank == 0 and DIES == "asking" and made == EVERY:
            os._exit(9)
        if checkpoint.should_save(made):
            checkpoint.save(made, wait=True)
    with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": session.committed, "generation": session.generation}) + "\n")
checkpoint.wait()
with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
    saved = sorted(path.name for path in (OUT / "saved").iterdir())
    lines.write(json.dumps({"saved": saved, "rank": dist.get_rank(), "world": dist.get_world_size()}) + "\n")
session.close()
