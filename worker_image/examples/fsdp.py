"""FSDP2: the parameters are split over the ranks, and a checkpoint of one world size is loaded at another.

torchrun --standalone --nproc-per-node=2 fsdp.py --checkpoint-dir /tmp/fsdp --steps 20
torchrun --standalone --nproc-per-node=3 fsdp.py --checkpoint-dir /tmp/fsdp --steps 40
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]

import elasticjob


def build(world: elasticjob.World) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(24, 24), nn.Tanh()]
    model: Any = nn.Sequential(*layers, nn.Linear(24, 1)).to(world.device)
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with elasticjob.init(threads=1) as world:
        model = build(world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        checkpoint = elasticjob.Checkpointer(args.checkpoint_dir, model, optimizer, every=10)
        first = step = checkpoint.restore()
        losses = []
        while step < args.steps:
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(48, 24, generator=generator).to(world.device)  # the world's batch
            share = torch.arange(world.rank, len(x), world.world_size)
            errors = (model(x[share]) - x[share, :4].sum(1, keepdim=True)).square()
            # The ranks' gradients are averaged; weighing by the share makes it the mean over the world's batch.
            loss = errors.sum() * world.world_size / len(x)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
            losses.append(elasticjob.all_reduce(loss.detach(), op="mean").item())
            elasticjob.report(step=step, total=args.steps, loss=losses[-1])
            if checkpoint.should_save(step):
                checkpoint.save(step)
        checkpoint.wait()
        share_of_parameters = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
        whole = sum(p.numel() for p in model.parameters())
        facts = {"rank": world.rank, "worldSize": world.world_size, "resumedAt": first, "step": step}
        facts |= {"mine": share_of_parameters, "whole": whole}
        print(json.dumps(facts | {"losses": [round(loss, 6) for loss in losses]}), flush=True)


if __name__ == "__main__":
    main()
