"""A session on a device with NCCL's semantics, whose ranks poll the device as CUDA does: their processors never rest.

If the file `stay` is there, rank 1 does not go on as long as it is. Its words say where: in a "step", in an
"evaluation" behind a step, "outside" of any block there, when a "world" begins, or before it makes the communicator of
a "group". While the file `evaluate` is there, all ranks evaluate without an end.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from elasticjob.data import samplers
from elasticjob.sessions import session
from elasticjob.torchcompat import devices
from worker import fake_nccl

out = Path(sys.argv[1])
STAY, EVALUATE, AFTER = out / "stay", out / "evaluate", 20


def is_wanted(where: str) -> bool:
    return STAY.exists() and STAY.read_text() == where


def stay(run: session.Session, where: str) -> None:
    """Outside of any collective."""
    while run.rank == 1 and is_wanted(where):
        time.sleep(0.01)


def reduce_and_read() -> None:
    """A mean over the ranks, as `total.item()` reads it: the processor polls the device."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_completed():
        time.sleep(0)


def write(run: session.Session) -> None:
    row = {"pid": os.getpid(), "step": run.committed, "generation": run.generation, "world": run.world_size}
    with (out / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(row | {"rank": run.rank, "t": time.time()}) + "\n")


def enter(run: session.Session) -> None:
    write(run)
    if is_wanted("world"):
        stay(run, "world")
        reduce_and_read()
    if is_wanted("group"):
        dist.new_group()
        stay(run, "group")


def evaluate(run: session.Session) -> None:
    if is_wanted("evaluation") or EVALUATE.exists():
        with run.interruptible():
            while True:
                stay(run, "evaluation")
                reduce_and_read()
                write(run)
                time.sleep(0.02)
                if not EVALUATE.exists():
                    break
    if is_wanted("outside"):
        stay(run, "outside")
        reduce_and_read()


def main() -> None:
    torch.set_num_threads(1)
    devices.register_wait(fake_nccl.NAME, fake_nccl.poll)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = samplers.ElasticDistributedSampler(4800, global_batch_size=12, rank=0, world_size=1)
    loader = DataLoader(TensorDataset(torch.randn(4800, 4)), batch_sampler=sampler)
    run = session.Session(model=model, optimizer=optimizer, sampler=sampler, backend=fake_nccl.NAME, on_world=enter)
    for epoch in range(sampler.epoch, 1000):
        sampler.set_epoch(epoch)
        for (inputs,) in run.batches(loader):
            with run.step():
                if run.committed == AFTER:
                    stay(run, "step")
                run.backward(run.model(inputs).square().mean())
                if run.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
            write(run)
            if run.committed == AFTER:
                evaluate(run)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
