"""A small training loop with a session; every committed step is one JSON line with a hash of the parameters."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from elasticjob.data import samplers
from elasticjob.sessions import session

SAMPLES, GLOBAL_BATCH = 960, 48


def hash_parameters(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--before-seconds", type=float, default=0.0, help="between a batch and its step")
    parser.add_argument("--stuck-world", type=int, default=0, help="a world of this size computes for ever in step 1")
    parser.add_argument("--rest-world", type=int, default=0, help="a world of this size rests for ever after step 1")
    parser.add_argument("--flip-in", type=int, default=0, help="size of the world in which a bit of rank 1 flips")
    parser.add_argument("--epoch-steps", type=int, default=SAMPLES // GLOBAL_BATCH, help="leave an epoch after these")
    args = parser.parse_args()
    from backends import choose  # type: ignore[import-not-found]
    from unpickling import forbid_unpickling

    forbid_unpickling()
    args.out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 8)
    y = (x @ torch.randn(8, 1)).tanh()
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = samplers.ElasticDistributedSampler(SAMPLES, global_batch_size=GLOBAL_BATCH, rank=0, world_size=1)
    dataset = TensorDataset(x, y)
    loader = DataLoader(dataset, batch_sampler=sampler)
    descriptor = os.open(args.out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    torch.manual_seed(2 + os.getpid())  # newcomers differ until they get the state
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1) if "FIXED" not in os.environ else parameter.data.fill_(0.05)
    compiled: Any = torch.compile(model, backend="aot_eager") if "COMPILE" in os.environ else model
    has_flipped = False
    run = session.Session(model=compiled, optimizer=optimizer, sampler=sampler, backend=choose())
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        first = run.committed
        for inputs, targets in run.batches(loader):
            before = run.committed
            time.sleep(args.before_seconds)
            with run.step():
                time.sleep(600.0 if before >= 0 and run.world_size == args.stuck_world else 0.0)
                loss = torch.nn.functional.mse_loss(run.model(inputs), targets) * run.scale
                loss.backward()  # type: ignore[no-untyped-call]
                if run.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()
            if run.committed > before:
                with torch.no_grad():
                    full = torch.nn.functional.mse_loss(model(x), y).item()
                line = {
                    "t": time.time(),
                    "step": run.committed,
                    "rank": run.rank,
                    "world": run.world_size,
                    "generation": run.generation,
                    "pid": os.getpid(),
                    "hash": hash_parameters(model),
                    "loss": full,
                    "used": [sampler.epoch, sampler.used],
                }
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            with run.interruptible():
                time.sleep(600.0 if run.committed > 0 and run.world_size == args.rest_world else 0.0)
            if run.rank == 1 and run.world_size == args.flip_in and run.committed % 20 == 0 and not has_flipped:
                has_flipped = True
                next(model.parameters()).data.view(torch.int32)[0, 0] ^= 1 << 20
                print(f"a bit flips after step {run.committed}", flush=True)
            time.sleep(args.step_seconds)
            if run.committed >= first + args.epoch_steps:
                break
    run.close()


if __name__ == "__main__":
    main()
