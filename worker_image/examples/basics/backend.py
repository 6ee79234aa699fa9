"""Which backend? NCCL for GPUs, gloo for CPUs, MPI only where torch was built with it. Then DDP on what is there.

Each rank needs three things that are easy to forget: a device of its own, its own part of the data (the sampler), and
DistributedDataParallel, which averages the gradients. The test is that all ranks end with the same weights and that
these are the weights that one process with all the data gets.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import elasticjob


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]], device: torch.device) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for _ in range(20):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return loss.item()


def main() -> None:
    available = {
        "nccl": dist.is_nccl_available(),
        "gloo": dist.is_gloo_available(),
        "mpi": dist.is_mpi_available(),
    }
    with elasticjob.init(threads=1) as world:
        x = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        sampler: DistributedSampler[int] = DistributedSampler(data, world.world_size, world.rank, shuffle=False)
        model = DistributedDataParallel(build().to(world.device))
        loss = train(model, DataLoader(data, batch_size=64 // world.world_size, sampler=sampler), world.device)

        alone = build().to(world.device)
        train(alone, DataLoader(data, batch_size=64), world.device)
        difference = max(
            float((a - b).detach().abs().max())
            for a, b in zip(model.module.parameters(), alone.parameters(), strict=True)
        )
        facts = {"rank": world.rank, "backend": world.backend, "reason": world.reason, "available": available}
        print(json.dumps(facts | {"loss": round(loss, 6), "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
