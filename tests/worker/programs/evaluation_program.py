"""A rank of a session that evaluates its model after each fourth step, and is lost where a test says so.

WHERE: in an evaluation in a block (`block`), in one outside of any (`outside`), or in the step after such one (`step`).
WITH: `buffers` for a model that has some, `sent` if DDP also sends them, `virtual` for virtual ranks. Scripts have no
`finally` around an evaluation, nor has this one.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import elasticjob

WHERE, WITH = os.environ["WHERE"], os.environ["WITH"]
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


def read(run: elasticjob.Session) -> Iterator[torch.Tensor]:
    """The batch of each pass. Virtual ranks need those of a sampler."""
    if run.sampler is None:
        while run.committed < LAST:
            yield torch.randn(4, 8)
        return
    rows: Any = torch.randn(32, 8)
    loader: Any = DataLoader(rows, batch_sampler=run.sampler)
    for epoch in range(run.sampler.epoch, LAST):
        run.sampler.set_epoch(epoch)
        for batch in run.batches(loader):
            yield batch
            if run.committed >= LAST:
                return


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    normed = [torch.nn.BatchNorm1d(8)] if WITH in ("buffers", "sent") else []
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), *normed, torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    more: dict[str, Any] = {"ddp": {"broadcast_buffers": WITH == "sent"}}  # else passes outside communicate nothing
    if WITH == "virtual":
        more = {"sampler": elasticjob.ElasticDistributedSampler(32, global_batch_size=8, virtual_ranks=4)}
    run = elasticjob.Session(model=model, optimizer=optimizer, **more)
    for batch in read(run):
        with run.step():
            if WHERE == "step":
                lose(run)
            row = {"world": run.world_size, "trains": model.training, "records": torch.is_grad_enabled()}
            run.backward(run.model(batch).square().mean())
            if run.ends_step:
                optimizer.step()
                optimizer.zero_grad()
        if not run.ends_step:
            continue
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
