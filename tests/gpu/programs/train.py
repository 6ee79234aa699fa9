"""One process of a session that runs ahead of the device, as scripts for GPUs do.

It writes a line for each step that is committed, once the device has done it: nothing in the loop waits for the
device. `die-PID` in the folder names the point at which this process is to kill itself, or to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import elasticjob
from gpu.programs import training

DRY = os.environ.get("DRY") == "1"
FOLDER = Path(os.environ["FOLDER"])
SETTINGS: dict[str, Any] = json.loads(os.environ["SETTINGS"])
WISH = FOLDER / f"die-{os.getpid()}"
# Without a device: gloo, or the backend that behaves like NCCL (FAKE=1).
BACKEND = ("fakenccl" if os.environ.get("FAKE") == "1" else "gloo") if DRY else "nccl"
if BACKEND == "fakenccl":
    importlib.import_module("worker.fake_nccl")
device = torch.device("cpu") if DRY else torch.device("cuda", 0)
lines = (FOLDER / f"{os.getpid()}.jsonl").open("a", buffering=1)


def say(event: str, **values: Any) -> None:
    lines.write(json.dumps({"event": event, "t": time.time()} | values) + "\n")


def pass_point(point: str) -> None:
    """Die here if that is wished; `stop` begins a pause, as of a node that is not scheduled."""
    if not WISH.exists() or WISH.read_text().strip() != point:
        return
    say("dies", point=point)
    if point.startswith("stop"):
        WISH.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner: Any, name: str, point: str) -> None:
    inner = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        pass_point(point)
        return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


class DiesSending:
    """Dies in the transfer of its state to those who join, once it has handed over the wished part of the bytes."""

    def __init__(self, total: int) -> None:
        self.total, self.sent = total, 0
        for name in ("broadcast", "send", "isend", "all_reduce", "all_gather", "scatter"):
            self._wrap(name)
        self._wrap_batch()

    def note(self, value: Any) -> None:
        if not torch.is_tensor(value) or value.numel() * value.element_size() <= 1 << 16 or not WISH.exists():
            return
        point, _, part = WISH.read_text().partition(" ")
        if point == "sending" and dist.get_rank() == 0:
            self.sent += value.numel() * value.element_size()
            if self.sent > float(part) * self.total:
                say("dies", point="sending", sent=self.sent)
                os.kill(os.getpid(), signal.SIGKILL)

    def _wrap(self, name: str) -> None:
        inner = getattr(dist, name)

        def wrapped(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            found = inner(tensor, *args, **kwargs)  # with NCCL it has only been queued
            self.note(tensor)
            return found

        setattr(dist, name, wrapped)

    def _wrap_batch(self) -> None:
        inner = dist.batch_isend_irecv

        def wrapped(operations: Any) -> Any:
            found = inner(operations)
            for one in operations:
                if one.op in (dist.isend, dist.send) or getattr(one.op, "__name__", "") in ("isend", "wrapped"):
                    self.note(one.tensor)
            return found

        dist.batch_isend_irecv = wrapped  # type: ignore[assignment]


class Steps:
    """The steps that were queued, and are written down when the device has done them."""

    def __init__(self) -> None:
        self._queued: list[tuple[Any, dict[str, Any], tuple[torch.Tensor, ...]]] = []
        self._done_at: dict[int, int] = {}

    def queue(self, values: tuple[torch.Tensor, ...], **row: Any) -> None:
        """`values`: a norm, a weighted sum and a digest of the bits, still on the device."""
        event = None
        if not DRY:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record()
        self._queued.append((event, row, values))

    def flush(self, *, wait: bool) -> None:
        while self._queued:
            event, row, values = self._queued[0]
            if event is not None:
                if wait:
                    event.synchronize()
                elif not event.query():
                    return
            now = time.time()
            norm, weighted, bits = (one.item() for one in values)
            say("step", **row | {"t": now, "norm": norm, "weighted": weighted, "bits": bits})
            del self._queued[0]


def read_rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def measure_process() -> dict[str, int]:
    """`keptMib` is the part of `rssMib` that the C library keeps although nobody uses it: it is given back here."""
    before = read_rss()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    return {
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "pythonThreads": threading.active_count(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "rssMib": read_rss(),
        "keptMib": max(0, before - read_rss()),
        "freeMib": 0 if DRY else torch.cuda.mem_get_info()[0] >> 20,
    }


def main() -> None:
    torch.set_num_threads(1)
    if SETTINGS.get("virtual"):
        torch.use_deterministic_algorithms(True)
    dtype = getattr(torch, SETTINGS.get("dtype", "float64"))
    if not DRY and SETTINGS.get("bind", True):
        torch.cuda.set_device(device)
    x, y = (one.to(device) for one in training.make_data(dtype))
    model = training.make_model(SETTINGS.get("width", 512), dtype).to(device)
    optimizer = training.make_optimizer(model)
    wrap(dist, "init_process_group", "init")
    wrap(nn.parallel.DistributedDataParallel, "__init__", "ddp")
    DiesSending(2 * sum(one.numel() * one.element_size() for one in model.parameters()))  # momentum, too
    sampler = training.make_sampler(
        micro_batch_size=SETTINGS.get("micro"), virtual_ranks=SETTINGS.get("virtual") or None
    )
    loader = training.make_loader(sampler)
    clip = SETTINGS.get("clip")
    scaler = torch.amp.GradScaler(device.type) if SETTINGS.get("scaler") else None
    extras: dict[str, Any] = {} if scaler is None else {"scaler": scaler}
    steps = Steps()
    last, pause = SETTINGS.get("last", 10**9), SETTINGS.get("pause", 0.0)

    def on_world(here: elasticjob.Session) -> None:
        # The state with which this world begins; a step behind which the last world broke is among `steps` already.
        norm, weighted, bits = (one.item() for one in training.describe(model))
        row = {"generation": here.generation, "rank": here.rank, "step": here.committed, "bits": bits}
        say("world", **row | {"norm": norm, "weighted": weighted} | measure_process())

    run = elasticjob.Session(
        model=model,
        optimizer=optimizer,
        sampler=sampler,
        backend=BACKEND,
        timeout=60.0,
        on_world=on_world,
        **extras,
    )
    for epoch in range(sampler.epoch, 10**6):
        sampler.set_epoch(epoch)
        for index in run.batches(loader):
            if run.committed >= last:
                steps.flush(wait=True)
                run.close()
                sys.exit(0)
            where, before, generation = index.to(device, non_blocking=True), run.committed, run.generation
            pass_point("between")
            with run.step():
                loss = nn.functional.mse_loss(run.model(x[where]), y[where])
                pass_point("forward")
                pass_point("stop")
                run.backward(loss if scaler is None else scaler.scale(loss))
                pass_point("backward")
                if run.ends_step:
                    if scaler is not None:
                        scaler.unscale_(optimizer)
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()
                    pass_point("optimizer")
                    optimizer.zero_grad()
            if run.committed > before:
                values = training.describe(model)
                steps.queue(values, step=run.committed, generation=generation, rank=run.rank, world=run.world_size)
            if SETTINGS.get("evaluates"):
                with run.interruptible():
                    total = torch.ones(1, device=device)
                    pass_point("stop evaluating")
                    dist.all_reduce(total)
                    total.item()
            steps.flush(wait=False)
            if pause:
                time.sleep(pause)


if __name__ == "__main__":
    main()
