"""A session whose optimizers train parameters that are of no module: a scale of the loss, and weights of two losses.

HOW says who adds up their gradients. script: the script does, as it may. session: `virtual_ranks`, which cannot.
RANK_SEED, if set, is the seed of what each rank begins with.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from elasticjob import ElasticDistributedSampler, Session
from worker.programs.backends import choose

HOW, OUT = os.environ["HOW"], Path(os.environ["OUT"])
EPOCHS = 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4, dtype=torch.double), torch.randn(24, 2, dtype=torch.double))
    model = torch.nn.Linear(4, 2).double()
    torch.manual_seed(int(os.environ.get("RANK_SEED", "1")))
    scale = torch.nn.Parameter(torch.randn((), dtype=torch.double))
    weights = torch.nn.Parameter(torch.randn(2, dtype=torch.double))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.05)
    second = torch.optim.SGD([weights], lr=0.05, momentum=0.9)
    sampler = ElasticDistributedSampler(data, global_batch_size=8, virtual_ranks=4 if HOW == "session" else None)
    session = Session(model=model, optimizer=optimizer, sampler=sampler, second=second, backend=choose())
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in session.batches(DataLoader(data, batch_sampler=sampler)):
            while session.committed == 5 and session.generation == 1 and not (OUT / "told").exists():
                time.sleep(0.01)
            before = session.committed
            with session.step():
                losses = (session.model(x) * scale.exp() - y).square().mean(0)
                session.backward((losses * (-weights).exp() + weights).sum())
                if HOW == "script" and session.world_size > 1:
                    for one in (scale, weights):
                        assert one.grad is not None
                        dist.all_reduce(one.grad)
                        one.grad.div_(session.world_size)
                if session.ends_step:
                    for each in (optimizer, second):
                        each.step()
                        each.zero_grad()
            if session.committed > before:
                found = torch.cat([one.detach().flatten() for one in (scale, weights, *model.parameters())])
                row = {"step": session.committed, "generation": session.generation, "weights": found.tolist()}
                with (OUT / f"{os.getpid()}.jsonl").open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
    session.close()


if __name__ == "__main__":
    main()
