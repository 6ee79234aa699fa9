"""A session on a device with NCCL's semantics, whose ranks poll the device as CUDA does: their processors never rest.

Rank 1 of the first world waits for the file `go` in step 20, outside of any collective, if the file `stay` is there.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.utils.data import DataLoader, TensorDataset

from elasticjob.data import samplers
from elasticjob.sessions import session
from elasticjob.torchcompat import devices
from worker import fake_nccl

out = Path(sys.argv[1])


def main() -> None:
    torch.set_num_threads(1)
    devices.register_wait(fake_nccl.NAME, fake_nccl.poll)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = samplers.ElasticDistributedSampler(4800, global_batch_size=12, rank=0, world_size=1)
    loader = DataLoader(TensorDataset(torch.randn(4800, 4)), batch_sampler=sampler)
    run = session.Session(model=model, optimizer=optimizer, sampler=sampler, backend=fake_nccl.NAME)
    for epoch in range(sampler.epoch, 1000):
        sampler.set_epoch(epoch)
        for (inputs,) in run.batches(loader):
            with run.step():
                while run.rank == 1 and run.committed == 20 and (out / "stay").exists():
                    time.sleep(0.01)
                run.backward(run.model(inputs).square().mean())
                if run.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
            row = {"pid": os.getpid(), "step": run.committed, "generation": run.generation, "world": run.world_size}
            with (out / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(row | {"rank": run.rank, "t": time.time()}) + "\n")
            time.sleep(0.02)


if __name__ == "__main__":
    main()
