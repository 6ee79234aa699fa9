"""Ranks of a session whose script keeps the global generators of random numbers in an object of the session.

It draws from them behind the optimizers of each step, and once more behind each step or epoch if `BETWEEN` says so. In
the first step of generation `LOST`, or in step `LOST_STEP`, the rank `WHO` dies between two optimizers. `RATE` says
where it lowers the learning rate in each step, if it does: before the block, inside, or behind it.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy
import torch

from elasticjob import ElasticDistributedSampler, Session

EPOCHS, SAMPLES, BATCH = 3, 12, 4
LOST, LOST_STEP = int(os.environ.get("LOST", "-1")), int(os.environ.get("LOST_STEP", "-1"))
WHO, WAITS, BETWEEN = int(os.environ.get("WHO", "0")), "WAITS" in os.environ, os.environ.get("BETWEEN", "")
RATE = os.environ.get("RATE", "")
OUT = Path(os.environ["OUT"])


class Draws:
    """What was drawn, and where the generators are."""

    def __init__(self) -> None:
        random.seed(11)
        numpy.random.seed(11)
        self.drawn: list[list[float]] = []

    def draw(self) -> None:
        self.drawn.append([random.random(), float(numpy.random.rand())])

    def state_dict(self) -> dict[str, Any]:
        found: Any = numpy.random.get_state()
        kind, keys, *rest = found
        states = {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]}
        return states | {"drawn": [list(one) for one in self.drawn]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(state["python"])
        numpy.random.set_state(state["numpy"])
        self.drawn = [list(one) for one in state["drawn"]]


def main() -> None:
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.arange(4.0 * SAMPLES).reshape(SAMPLES, 4) / 100)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    sampler = ElasticDistributedSampler(data, global_batch_size=BATCH)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    draws = Draws()
    session = Session(model=model, optimizer=optimizers[0], sampler=sampler, second=optimizers[1], draws=draws)

    def pass_by(place: str) -> None:
        for group in optimizers[0].param_groups if place == RATE else ():
            group["lr"] *= 0.9

    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for (x,) in session.batches(loader):
            while WAITS and session.generation == 1 and session.committed == 1 and not (OUT / "told").exists():
                time.sleep(0.01)
            step = session.committed + 1
            is_due = session.generation == LOST or (step == LOST_STEP and session.generation == 1)
            pass_by("before")
            with session.step():
                pass_by("inside")
                for number, optimizer in enumerate(optimizers):
                    found = session.model(x).square().mean()
                    if number and is_due and session.rank == WHO and session.world_size > 1:
                        os._exit(9)
                    session.backward(found)
                    optimizer.step()
                    model.zero_grad()
                draws.draw()
            if session.committed == step:
                with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
                    lines.write(
                        json.dumps({"step": step, "drawn": draws.drawn, "rate": optimizers[0].param_groups[0]["lr"]})
                        + "\n"
                    )
                pass_by("behind")
                if BETWEEN == "steps":
                    draws.draw()
        if BETWEEN == "epochs":
            draws.draw()
    session.close()


if __name__ == "__main__":
    main()
