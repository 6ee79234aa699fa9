"""A rank of a session that evaluates its model after each fourth step, and is lost where a test says so.

WHERE: in an evaluation in a block (`block`), in one outside of any (`outside`), or in the step after such one (`step`).
WITH: `buffers` for a model that has some. Scripts have no `finally` around an evaluation, nor has this one.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

import elasticjob

WHERE = os.environ["WHERE"]
LAST = 12


def lose(run: elasticjob.Session) -> None:
    if run.committed == 4 and run.world_size == 3 and run.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def evaluate(run: elasticjob.Session) -> None:
    run.model.eval()
    with torch.no_grad():
        value = run.model(torch.randn(4, 8)).mean()
        if WHERE != "step":
            lose(run)
        if WHERE == "block":
            dist.all_reduce(value)
    run.model.train()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    normed = [torch.nn.BatchNorm1d(8)] if os.environ["WITH"] == "buffers" else []
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), *normed, torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Each rank has its own buffers: a pass outside of any block communicates nothing, and so does not fail.
    run = elasticjob.Session(model=model, optimizer=optimizer, ddp={"broadcast_buffers": False})
    while run.committed < LAST:
        with run.step():
            if WHERE == "step":
                lose(run)
            row = {"world": run.world_size, "trains": model.training, "records": torch.is_grad_enabled()}
            run.backward(run.model(torch.randn(4, 8)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        with Path(os.environ["OUT"], f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({"step": run.committed, **row}) + "\n")
        if run.committed % 4 == 0 and WHERE == "block":
            with run.interruptible():
                evaluate(run)
        elif run.committed % 4 == 0:
            evaluate(run)
    run.close()


if __name__ == "__main__":
    main()
