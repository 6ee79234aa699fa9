"""A session whose world is lost in a way of HOW: nothing that its script held then may wait for Python's collector.

Rank 1 dies in step 5. Each committed step is a line, with the number of objects of calls that a loss has ended, and of
earlier steps. HOW: step (in a backward pass), caught (the script goes on to its optimizer), own (it raises an error of
its own instead), interrupted (while it computes), block (in a collective between two steps), caught-block, message
(while the others wait for one from rank 1).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from elasticjob.sessions.session import Session

HOW = os.environ["HOW"]
LOST = 5
OUT = Path(os.environ["OUT"])
DIED = OUT / "died"
IS_FIRST = not DIED.exists()  # not started in the place of rank 1


class Large:
    """Of a script's call, such as the activations of a step."""


tried: list[int] = []  # worlds in which this rank has waited for a message
held: weakref.WeakSet[Large] = weakref.WeakSet()


def call(step: int, session: Session, loss: torch.Tensor | None = None) -> None:
    large = Large()
    held.add(large)
    if step == LOST and session.rank == 1 and not DIED.exists():
        DIED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "interrupted" and step == LOST and IS_FIRST and not tried:
        tried.append(session.generation)
        time.sleep(60)
    if loss is not None:
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if HOW == "own":
                raise ValueError("the loss has diverged") from None
            raise
    elif HOW == "message" and step == LOST and session.rank == 0 and not tried:
        tried.append(session.generation)
        dist.recv(torch.ones(8), 1)
    else:
        dist.all_reduce(torch.ones(8))
    del large


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session(model=model, optimizer=optimizer)
    gc.collect()
    gc.disable()
    first = 0  # the world that is lost
    catching = contextlib.suppress(Exception) if HOW.startswith("caught") else contextlib.nullcontext()
    with (OUT / f"{os.getpid()}.jsonl").open("a", buffering=1) as lines:
        while True:
            step = session.committed + 1
            first = first or (session.generation if step < LOST and session.world_size == 2 else 0)
            mine = Large()
            held.add(mine)
            with session.step():
                loss = session.model(torch.ones(2, 4)).sum()
                if HOW in ("step", "caught", "own", "interrupted"):
                    with catching:
                        call(step, session, loss)
                else:
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if HOW in ("block", "caught-block", "message"):
                with session.interruptible() as block, catching:
                    call(session.committed, session)
                del block
            del mine
            about = {"generation": session.generation, "held": len(held), "lost": session.generation > first > 0}
            lines.write(json.dumps({"t": time.time(), "step": session.committed, **about}) + "\n")


if __name__ == "__main__":
    main()
