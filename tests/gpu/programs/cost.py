"""One process: steps of a small transformer under DDP, as a plain loop and in a session, by turns of the same work."""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from gpu.programs import train

DRY = train.DRY
WIDTH, LAYERS, SEQUENCE, WARM, STEPS = (32, 1, 8, 2, 4) if DRY else (1024, 12, 256, 10, 100)


def make(fused: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, WIDTH // 16, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers).to(train.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


def find_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(train.device.type, torch.bfloat16):
        return model(x).square().mean()  # type: ignore[no-any-return]


def time_plain(x: torch.Tensor, fused: bool) -> float:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo" if DRY else "nccl", store=store, rank=0, world_size=1)
    inner, optimizer = make(fused)
    model = nn.parallel.DistributedDataParallel(inner)
    best = float("inf")
    for turn in range(3):
        synchronize()
        began = time.monotonic()
        for _ in range(WARM if turn == 0 else STEPS):
            torch.autograd.backward(find_loss(model, x))
            optimizer.step()
            optimizer.zero_grad()
        synchronize()
        if turn:
            best = min(best, (time.monotonic() - began) / STEPS)
    dist.destroy_process_group()
    return best


def time_session(x: torch.Tensor, fused: dict[str, bool]) -> dict[str, float]:
    """A session owns the process's only channel: it has one after the other of the optimizers."""
    found = {}
    for name, is_fused in fused.items():
        model, optimizer = make(is_fused)
        run = elasticjob.Session(
            model=model, optimizer=optimizer, backend="gloo" if DRY else "nccl", on_world=lambda _: None
        )
        best = float("inf")
        for turn in range(3):
            synchronize()
            began = time.monotonic()
            for _ in range(WARM if turn == 0 else STEPS):
                with run.step():
                    run.backward(find_loss(run.model, x))
                    optimizer.step()
                    optimizer.zero_grad()
            synchronize()
            if turn:
                best = min(best, (time.monotonic() - began) / STEPS)
        found[name] = best
    return found


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(8, SEQUENCE, WIDTH, device=train.device)
    kinds = {"foreach": False} if DRY else {"fused": True}
    plain = {name: time_plain(x, fused) for name, fused in kinds.items()}
    gc.collect()
    session = time_session(x, kinds)
    milliseconds = [{name: round(1000 * value, 3) for name, value in one.items()} for one in (plain, session)]
    train.say("cost", plain=milliseconds[0], session=milliseconds[1])
    time.sleep(60)  # its agent ends it


if __name__ == "__main__":
    main()
