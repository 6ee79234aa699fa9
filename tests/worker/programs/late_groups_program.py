"""A session whose script adds groups of parameters to its optimizers in step 4, as one of adapters does.

HOW says how it knows that it is time: at: by the step, so a rank that joins later never does. flag: by a variable of
its own, so a rank that joins later does so in its first step. kill: by the step, and rank 1 is lost in that step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch

from elasticjob import Session
from worker.programs.backends import choose

HOW, OUT = os.environ["HOW"], Path(os.environ["OUT"])
ADDED, LAST = 4, 10


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    head = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    whole = torch.nn.ModuleDict({"model": model, "head": head})
    whole.requires_grad_(False)
    model[2].requires_grad_(True)
    head[1].requires_grad_(True)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.05)
    second = torch.optim.SGD(head[1].named_parameters(), lr=0.01, momentum=0.9)
    session = Session(model=Both(whole), optimizer=optimizer, second=second, backend=choose())
    is_added = False
    while session.committed < LAST:
        if (session.committed + 1 == ADDED) if HOW != "flag" else (not is_added and session.committed + 1 >= ADDED):
            is_added = True
            model[0].requires_grad_(True)
            head[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.02})
            second.add_param_group({"params": head[0].named_parameters(), "lr": 0.02})
        before = session.committed
        while session.committed == 6 and session.generation == 1 and not (OUT / "told").exists():
            time.sleep(0.01)
        with session.step():
            if HOW == "kill" and session.committed + 1 == ADDED and session.generation == 1 and session.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            session.backward(session.model(torch.full((2, 4), 0.1 * session.committed)).square().mean())
            for one in (optimizer, second):
                one.step()
                one.zero_grad()
        if session.committed > before:
            weights = [one.detach().double().norm().item() for one in whole.parameters()]
            row = {"step": session.committed, "generation": session.generation, "weights": weights}
            with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    session.close()


class Both(torch.nn.Module):
    def __init__(self, whole: torch.nn.ModuleDict) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.whole["head"](self.whole["model"](x))
        return found


if __name__ == "__main__":
    main()
