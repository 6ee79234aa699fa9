"""One process: steps of a small transformer under DDP, as a plain loop and in a session, one after the other."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from gpu.programs import train

DRY = train.DRY
WIDTH, LAYERS, SEQUENCE, WARM, STEPS = (32, 1, 8, 2, 4) if DRY else (1024, 12, 256, 10, 60)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, WIDTH // 16, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers).to(train.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not DRY)


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


def find_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(train.device.type, torch.bfloat16):
        return model(x).square().mean()  # type: ignore[no-any-return]


def repeat(step: Callable[[], None]) -> float:
    """Seconds of a step, of the better of two rows."""
    found = []
    for count in (WARM, STEPS, STEPS):
        synchronize()
        began = time.monotonic()
        for _ in range(count):
            step()
        synchronize()
        found.append((time.monotonic() - began) / count)
    return min(found[1:])


def time_plain(x: torch.Tensor) -> dict[str, float]:
    """Plain DDP; and the same with a wait for the device before the optimizer, which is what a session's fence does."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo" if DRY else "nccl", store=store, rank=0, world_size=1)
    inner, optimizer = make()
    model = nn.parallel.DistributedDataParallel(inner)

    def step(*, waits: bool) -> None:
        torch.autograd.backward(find_loss(model, x))
        if waits and not DRY:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    found = {"plain": repeat(lambda: step(waits=False)), "waits": repeat(lambda: step(waits=True))}
    dist.destroy_process_group()
    return found


def time_session(x: torch.Tensor) -> float:
    model, optimizer = make()
    backend = "gloo" if DRY else "nccl"
    run = elasticjob.Session(model=model, optimizer=optimizer, backend=backend, on_world=lambda _: None)

    def step() -> None:
        with run.step():
            run.backward(find_loss(run.model, x))
            optimizer.step()
            optimizer.zero_grad()

    return repeat(step)


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(8, SEQUENCE, WIDTH, device=train.device)
    found = time_plain(x)
    gc.collect()
    found["session"] = time_session(x)
    train.say("cost", **{name: round(1000 * value, 3) for name, value in found.items()})
    time.sleep(60)  # its agent ends it


if __name__ == "__main__":
    main()
