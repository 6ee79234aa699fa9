"""A script without a session, as most are: the agent starts it again in each world, and it loads its checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

import elasticjob
from gpu.programs import train, training


def main() -> None:
    torch.set_num_threads(1)
    place = elasticjob.init(train.BACKEND)
    x, y = (one.to(train.device) for one in training.make_data(torch.float64))
    model = training.make_model(train.SETTINGS["width"], torch.float64).to(train.device)
    optimizer = training.make_optimizer(model)
    sampler = training.make_sampler()
    checkpoint = elasticjob.Checkpointer(train.FOLDER / "checkpoints", model, optimizer, sampler=sampler, every=5)
    step = checkpoint.restore()
    replica = nn.parallel.DistributedDataParallel(model)
    # A forked worker has the environment of its standby, as the kernel shows it, which knew no world.
    warm = b"MASTER_ADDR=" not in Path("/proc/self/environ").read_bytes()
    train.say("world", generation=place.generation, rank=place.rank, step=step - 1, bits=0, warm=warm)
    steps = train.Steps()
    for epoch in range(sampler.epoch, 10**6):
        sampler.set_epoch(epoch)
        for _, index in sampler.steps(training.make_loader(sampler)):
            where = index.to(train.device, non_blocking=True)
            torch.autograd.backward(nn.functional.mse_loss(replica(x[where]), y[where]))
            optimizer.step()
            optimizer.zero_grad()
            values = training.describe(model)
            steps.queue(values, step=step, generation=place.generation, rank=place.rank, world=place.world_size)
            step += 1
            if checkpoint.should_save(step):
                checkpoint.save(step)
            steps.flush(wait=True)
            time.sleep(train.SETTINGS["pause"])


if __name__ == "__main__":
    main()
