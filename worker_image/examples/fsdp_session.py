"""FSDP2 in a session: the model is cut over some ranks and copied over the others, so that it outlives a lost rank.

torchrun --standalone --nproc-per-node=4 fsdp_session.py --checkpoint-dir /tmp/fsdp-session --shards 2

Where every shard has a live copy a loss costs one step at most; else the steps since the last copy in host memory.
Each rank prints one JSON object a line; `event` is step or done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, TensorDataset

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]

import elasticjob

SAMPLES, FEATURES, GLOBAL_BATCH = 960, 24, 48


def build(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of one world, on its mesh: copies x shards."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(FEATURES, FEATURES), nn.Tanh()]
    model: Any = nn.Sequential(*layers, nn.Linear(FEATURES, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(x, x[:, :4].sum(1, keepdim=True))


def say(event: str, session: elasticjob.Session, **values: Any) -> None:
    where = {"event": event, "generation": session.generation, "rank": session.rank, "worldSize": session.world_size}
    line = where | {"pid": os.getpid(), "step": session.committed + 1} | values
    sys.stdout.write(json.dumps(line) + "\n")  # one write: the ranks of a node share the output
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=2, help="how many ranks share one copy of the model")
    parser.add_argument("--copy-every", type=int, default=1, help="steps between copies of shards in host memory")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time of a step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = make_data()
    sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH)
    loader = DataLoader(data, batch_sampler=sampler)
    checkpoint: elasticjob.Checkpointer | None = None

    def on_world(here: elasticjob.Session) -> None:
        nonlocal checkpoint
        checkpoint = elasticjob.Checkpointer(args.checkpoint_dir, here.model, here.optimizer, sampler=sampler, every=10)
        if here.committed < 0:  # nobody in this world has a state
            here.committed = checkpoint.restore() - 1

    session = elasticjob.Session(
        build=build, shards=args.shards, copy_every=args.copy_every, sampler=sampler, on_world=on_world
    )
    losses: list[float] = []
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in session.batches(loader):
            started, before = time.monotonic(), session.committed
            with session.step():
                loss = nn.functional.mse_loss(session.model(inputs), targets)
                session.backward(loss)
                if session.ends_step:
                    session.optimizer.step()
                    session.optimizer.zero_grad()
                    step = before + 2  # the number of steps that are made, this one included
                    if checkpoint is not None and checkpoint.should_save(step):
                        checkpoint.save(step)
            if session.committed > before:
                losses.append(loss.item())
                say("step", session, loss=round(losses[-1], 6))
                elasticjob.report(step=session.committed + 1, loss=loss)
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - started)))
    if checkpoint is not None:
        checkpoint.wait()  # before the world ends, in which it is written
    mine = sum(p.to_local().numel() for p in session.model.parameters())
    whole = sum(p.numel() for p in session.model.parameters())
    say("done", session, mine=mine, whole=whole, firstLoss=losses[0], lastLoss=losses[-1])
    session.close()


if __name__ == "__main__":
    main()
