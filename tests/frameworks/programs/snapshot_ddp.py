"""DDP with a snapshot an epoch or so, as most scripts for several nodes are written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from record import Data, Record, make_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

STEPS = int(sys.argv[1])


def main() -> None:
    dist.init_process_group(backend="gloo")
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data, record = Data(), Record(STEPS)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    snapshot = Path(os.environ["OUT"]) / "snapshot.pt"
    step = epoch = 0
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True)
        model.module.load_state_dict(saved["model"])
        step, epoch = saved["step"], saved["epoch"]
    while step < STEPS:
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            record.step(step, float(loss.detach()), epoch, batch["index"].tolist())
            if step >= STEPS:
                break
        epoch += 1
        if dist.get_rank() == 0:
            unfinished = snapshot.with_suffix(".unfinished")
            torch.save({"model": model.module.state_dict(), "step": step, "epoch": epoch}, unfinished)
            unfinished.rename(snapshot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
