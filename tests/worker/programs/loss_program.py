"""The same training twice: with four ranks all the time, and with two, then four, then three, from checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elasticjob
from worker.programs.phases import run_phase
from worker.programs.saying import say

STEPS = 18
SAMPLES, BATCH = 70, 16  # an epoch ends with a batch of 6: it does not divide by 4


def train(name: str, directory: Path, until: int) -> None:
    with elasticjob.init(timeout=60) as world:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(SAMPLES, 12, generator=generator)
        data = TensorDataset(x, x[:, :3].sin().sum(1, keepdim=True))
        model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=BATCH, micro_batch_size=3, seed=5)
        checkpoint = elasticjob.Checkpointer(directory, model, optimizer, sampler=sampler)
        step = checkpoint.restore()
        losses: list[float] = []
        while step < until:
            total = torch.zeros(1)
            for micro, (inputs, targets) in sampler.steps(DataLoader(data, batch_sampler=sampler)):
                with micro.sync(model):
                    loss = nn.functional.mse_loss(model(inputs), targets) * micro.scale
                    torch.autograd.backward(loss)
                total += loss.detach() / world.world_size
                if micro.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    losses.append(elasticjob.all_reduce(total).item())
                    total = torch.zeros(1)
                    if step == until:
                        break
            else:
                sampler.set_epoch(sampler.epoch + 1)
        checkpoint.save(step, wait=True)
        say(name, losses)


def main() -> None:
    root = Path(sys.argv[1])

    def part(name: str, directory: str, until: int) -> Callable[[], None]:
        return lambda: train(name, root / directory, until)

    run_phase(1, 4, part("fixed", "fixed", STEPS))
    sizes = [2, 4, 3]
    for number, (name, size) in enumerate(zip(("first", "second", "third"), sizes, strict=True)):
        run_phase(2 + number, size, part(name, "changing", 6 * (number + 1)))
    say("sizes", sizes)


if __name__ == "__main__":
    main()
