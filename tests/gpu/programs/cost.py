"""One process: steps of a transformer, plain, with a wait for the device, in a session, and under DDP.

A world of one rank has no DDP in a session, so the plain loop has none either. All are timed in turns, in one process
and one group: what drifts on a device, its clock above all, meets them alike. SETTINGS name the case: `device`, whose
kernels take longer than their launches, as in most trainings, or `launches`, where it is the other way round and a
wait leaves the device idle.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import elasticjob
from gpu.programs import train

DRY = train.DRY
# width, layers, tokens of a sequence, sequences of a batch
CASES = {"device": (2048, 6, 1024, 4), "launches": (1024, 12, 256, 8)}
ROUNDS, WARM, STEPS = (2, 1, 2) if DRY else (6, 10, 24)


def make(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    parts = [
        nn.TransformerEncoderLayer(width, width // 16, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
    ]
    model = nn.Sequential(*parts).to(train.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not DRY)


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


def find_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(train.device.type, torch.bfloat16):
        return model(x).square().mean()  # type: ignore[no-any-return]


def repeat(step: Callable[[], None], count: int) -> float:
    """Seconds of a step."""
    synchronize()
    began = time.monotonic()
    for _ in range(count):
        step()
    synchronize()
    return (time.monotonic() - began) / count


def main() -> None:
    torch.set_num_threads(1)
    width, layers, sequence, batch = (32, 1, 8, 2) if DRY else CASES[train.SETTINGS["case"]]
    x = torch.randn(batch, sequence, width, device=train.device)
    model, optimizer = make(width, layers)
    run = elasticjob.Session(model=model, optimizer=optimizer, backend=train.BACKEND, on_world=lambda _: None)

    def in_session() -> None:
        with run.step():
            run.backward(find_loss(run.model, x))
            optimizer.step()
            optimizer.zero_grad()

    in_session()  # enters the world, in which the others run, too
    other, others = make(width, layers)
    replica = nn.parallel.DistributedDataParallel(other)

    def plain(*, waits: bool = False, called: nn.Module = other) -> None:
        torch.autograd.backward(find_loss(called, x))
        if waits and not DRY:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
        others.step()
        others.zero_grad()

    kinds: dict[str, Callable[[], None]] = {
        "plain": plain,
        "waits": lambda: plain(waits=True),
        "session": in_session,
        "again": plain,  # what two rows of the same differ by
        "ddp": lambda: plain(called=replica),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for step in kinds.values():
        repeat(step, WARM)
    for _ in range(ROUNDS):
        for name, step in kinds.items():
            found[name].append(repeat(step, STEPS))
    milliseconds = {name: round(1000 * statistics.median(times), 3) for name, times in found.items()}
    shares = {
        name: round(statistics.median(one / first for one, first in zip(times, found["plain"], strict=True)) - 1, 4)
        for name, times in found.items()
        if name != "plain"
    }
    train.say("cost", milliseconds=milliseconds, shares=shares)
    time.sleep(60)  # its agent ends it


if __name__ == "__main__":
    main()
