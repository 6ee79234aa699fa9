"""A training loop with a session and an FSDP2 model; every committed step is one JSON line with a hash of the whole
model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from backends import choose  # type: ignore[import-not-found]
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, TensorDataset
from unpickling import forbid_unpickling

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]

from elasticjob import Checkpointer
from elasticjob.data import samplers
from elasticjob.sessions import session

SAMPLES, GLOBAL_BATCH = 960, 48


def build(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    layers = [nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 7), nn.Tanh(), nn.Linear(7, 1)]
    model: Any = nn.Sequential(*layers)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def describe_parameters(model: nn.Module) -> dict[str, Any]:
    """Of the gathered model: a separate collective."""
    whole = [parameter.full_tensor().detach() for parameter in model.parameters()]  # type: ignore[attr-defined]
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in whole))
    return {"hash": digest.hexdigest()[:16], "size": sum(tensor.abs().sum().item() for tensor in whole)}


def break_next(name: str) -> None:
    """The next collective of this name that the session waits for succeeds, but this rank is cut off before it learns
    that: `all_reduce`, by which the ranks agree to apply a step, or `all_gather`, by which they compare their replicas.
    """
    call = getattr(dist, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        work = call(*args, **kwargs)
        if name == "all_gather" or (args[0].numel() == 1 and work is None):  # no gradient, and the session waits for it
            setattr(dist, name, call)
            raise RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection reset by peer")
        return work

    setattr(dist, name, fail)


@torch.no_grad()
def flip_bit(optimizer: torch.optim.Optimizer) -> None:
    """In this rank's shard of the first parameter."""
    optimizer.param_groups[0]["params"][0].to_local().view(torch.int32)[0, 0] ^= 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--copy-every", type=int, default=0)
    parser.add_argument("--break-at", type=int, help="the last rank takes no notice of what all agreed in this step")
    parser.add_argument(
        "--doubt-at", type=int, help="half of the ranks do not learn that all are equal after this step"
    )
    parser.add_argument("--flip-in", type=int, default=0, help="size of the world in which a bit of one rank flips ...")
    parser.add_argument("--flip-rank", type=int, default=1, help="... in the shard of this one")
    args = parser.parse_args()
    forbid_unpickling("torch/distributed/checkpoint/")
    args.out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 8, generator=generator)
    y = (x @ torch.randn(8, 1, generator=generator)).tanh()
    sampler = samplers.ElasticDistributedSampler(SAMPLES, global_batch_size=GLOBAL_BATCH, rank=0, world_size=1)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler)
    descriptor = os.open(args.out / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    checkpoints: list[Checkpointer] = []
    has_flipped = False

    def on_world(here: session.Session) -> None:
        checkpoints[:] = [Checkpointer(args.checkpoints, here.model, here.optimizer, sampler=sampler)]
        if here.committed < 0:  # nobody in this world has a state
            here.committed = checkpoints[0].restore() - 1

    run = session.Session(
        build=build,
        shards=args.shards,
        copy_every=args.copy_every,
        sampler=sampler,
        on_world=on_world,
        backend=choose(),
    )
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in run.batches(loader):
            before = run.committed
            if before + 1 == args.break_at and run.rank == run.world_size - 1:
                args.break_at = None
                break_next("all_reduce")
            if before + 1 == args.doubt_at and run.rank % 2 == 1:
                args.doubt_at = None
                break_next("all_gather")
            with run.step():
                loss = nn.functional.mse_loss(run.model(inputs), targets) * run.scale
                loss.backward()  # type: ignore[no-untyped-call]
                if run.ends_step:
                    run.optimizer.step()
                    run.optimizer.zero_grad()
                    made = run.committed + 2
                    line = {
                        "t": time.time(),
                        "step": made - 1,
                        "rank": run.rank,
                        "world": run.world_size,
                        "generation": run.generation,
                        "pid": os.getpid(),
                        "used": None,
                        "mesh": [*run.model.state_dict()["0.weight"].device_mesh.shape],
                    }
                    line |= describe_parameters(run.model)  # which a loss may break: the step is done all the same
                    if made % 10 == 0:
                        checkpoints[0].save(made)
            if run.committed > before:
                line["used"] = [sampler.epoch, sampler.used]
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            is_due = run.committed == 10 and not has_flipped
            if is_due and (run.world_size, run.rank) == (args.flip_in, args.flip_rank):
                has_flipped = True
                flip_bit(run.optimizer)
                print(f"a bit flips after step {run.committed}", flush=True)
            time.sleep(args.step_seconds)
    run.close()


if __name__ == "__main__":
    main()
