"""One process of a session whose model is cut over the ranks (FSDP2), with copies of the shards in the next pod."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]

import elasticjob
from gpu.programs import train, training

WIDTH = train.SETTINGS["width"]


def build(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: Any = training.make_model(WIDTH, torch.float64).to(train.device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, training.make_optimizer(model)


def find_norm(model: nn.Module) -> torch.Tensor:
    """Of all parameters, still on the device; every rank calls it."""
    whole: list[torch.Tensor] = [
        one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()
    ]
    norm: torch.Tensor = torch.cat([one.detach().reshape(-1) for one in whole]).norm()
    return norm


def main() -> None:
    torch.set_num_threads(1)
    if not train.DRY:
        torch.cuda.set_device(train.device)
    x, y = (one.to(train.device) for one in training.make_data(torch.float64))
    sampler = training.make_sampler()
    loader = training.make_loader(sampler)
    run = elasticjob.Session(build=build, sampler=sampler, copy_every=1, backend=train.BACKEND, timeout=60.0)
    for epoch in range(sampler.epoch, 10**6):
        sampler.set_epoch(epoch)
        for index in run.batches(loader):
            where, before, generation = index.to(train.device, non_blocking=True), run.committed, run.generation
            norm = None
            with run.step():
                norm = find_norm(run.model)  # of the step before
                loss = nn.functional.mse_loss(run.model(x[where]), y[where])
                train.pass_point("forward")
                run.backward(loss)
                run.optimizer.step()
                run.optimizer.zero_grad()
            if run.committed == before + 1 and before >= 0 and norm is not None:
                train.say("step", step=before, generation=generation, rank=run.rank, norm=norm.item())


if __name__ == "__main__":
    main()
