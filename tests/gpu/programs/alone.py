"""One process on the device: `alone.py CHECK RANK SIZE FILE`. It says what it finds, a JSON object a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

DRY = os.environ.get("DRY") == "1"
device = torch.device("cpu") if DRY else torch.device("cuda", 0)
said = open(os.environ["SAID"], "a", buffering=1)  # noqa: SIM115, PTH123 - until the process ends
start = time.monotonic()


def say(event: str, **values: Any) -> None:
    said.write(json.dumps({"event": event, "after": round(time.monotonic() - start, 3)} | values) + "\n")


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


def facts() -> None:
    import platform

    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    if not DRY:
        found |= {
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "card": torch.cuda.get_device_name(),
            "devices": torch.cuda.device_count(),
        }
    say("facts", **found)


def snapshots() -> None:
    """Steps of equal work, without snapshots and with one in every tenth; and how fast each was complete."""
    import elasticjob
    from elasticjob.checkpoint import shelf

    wanted = int(os.environ["BYTES"])
    torch.set_num_threads(1)
    elasticjob.init()
    # AdamW keeps twice the parameters beside them.
    parts = 16
    model = torch.nn.ParameterList(torch.randn(wanted // 12 // parts, device=device) for _ in range(parts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not DRY)
    side = 64 if DRY else 8192
    big = torch.randn(side, side, device=device, dtype=torch.float32 if DRY else torch.bfloat16)
    folder = Path(os.environ["FOLDER"]) / "checkpoints"
    checkpoint: Any = elasticjob.Checkpointer(folder, model, optimizer, memory_every=10)
    size = 3 * sum(one.numel() * one.element_size() for one in model.parameters())

    def step() -> None:
        for _ in range(2 if DRY else 100):
            torch.mm(big, big)
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        optimizer.zero_grad()

    def run(first: int, count: int, *, saves: bool) -> tuple[float, list[float]]:
        """Seconds for so many steps, and for each snapshot from its save until it is complete."""
        seconds = []
        synchronize()
        began = time.monotonic()
        pending = 0.0
        for number in range(first, first + count):
            step()
            if saves and checkpoint.should_save(number):
                pending = time.monotonic()
                checkpoint.save(number)
            if pending and not checkpoint._memory.is_busy:
                seconds.append(time.monotonic() - pending)
                pending = 0.0
        synchronize()
        took = time.monotonic() - began
        if pending:
            checkpoint._memory.wait()
            seconds.append(time.monotonic() - pending)
        return took, seconds

    step()
    began = time.monotonic()
    while not checkpoint.should_save(10) and time.monotonic() - began < 20.0:
        time.sleep(0.01)  # the memory for snapshots is being prepared, beside the training
    ready = time.monotonic() - began
    plain = min(run(1, 20, saves=False)[0] for _ in range(2))
    first, times = run(10, 10, saves=True)
    checkpoint._memory.wait()
    run(20, 10, saves=True)  # the other one of two slots, for the first time
    checkpoint._memory.wait()
    later, seconds = run(30, 20, saves=True)
    checkpoint._memory.wait()
    # Alone, to see how fast a copy is: nothing computes, and nothing but the snapshot is waited for.
    alone = []
    for number in (60, 70):
        synchronize()
        if checkpoint.should_save(number):
            began = time.monotonic()
            checkpoint.save(number)
            checkpoint._memory._wait_for_copy()
            synchronize()
            alone.append(time.monotonic() - began)
            checkpoint._memory.wait()
    before = [one.detach().cpu() for one in model.parameters()]
    kept: Any = shelf.find_shelf(checkpoint.directory)
    held = max(kept.held(), key=lambda one: one.step)
    choice = next(one for one in checkpoint._memory.find_choices() if one.step == held.step)
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
    problem = checkpoint._memory.restore(choice)
    same = problem is None and all(
        torch.equal(one.detach().cpu(), other) for one, other in zip(model.parameters(), before, strict=True)
    )
    say(
        "snapshots",
        gibibytes=round(size / 2**30, 2),
        secondsUntilReady=round(ready, 2),
        msPlainStep=round(1000 * plain / 20, 2),
        stallMsOfFirst=round(1000 * (first - plain / 2), 1),
        stallMsOfLater=round(1000 * (later - plain) / 2, 1),
        shareMore=round(later / plain - 1, 4),
        secondsUntilComplete=[round(one, 3) for one in (*times, *seconds)],
        laterGBs=round(size / min(alone) / 1e9, 2) if alone else None,
        restored=same,
    )


def doctor() -> None:
    """The preflight, as an agent runs it before its first world."""
    from elasticjob.diagnose import doctor as examined

    environ = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_HOSTID")}
    for level in ("Node", "Network"):
        began = time.monotonic()
        found = examined.preflight(level, environ, 60.0)
        shown = [f"{one.status} {one.check}: {one.detail[:160]}" for one in found if one.status != "skip"]
        say(
            level,
            seconds=round(time.monotonic() - began, 1),
            problem=examined.find_problem(found),
            findings=[one for one in shown if not one.startswith("ok") or "device" in one or "all_reduce" in one],
        )
    mib = 0
    if not DRY:
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        rows = [line.split(", ") for line in told.splitlines() if ", " in line]
        mib = sum(int(row[1]) for row in rows if row[0] == str(os.getpid()) and row[1].isdigit())
    say("left", initialized=bool(torch.cuda.is_initialized()), mib=mib)  # type: ignore[no-untyped-call]


def fork() -> None:
    """A standby: torch and its compiler are imported, devices are looked for, and a child uses the device."""
    import importlib

    importlib.import_module("torch._dynamo")
    from elasticjob.torchcompat import forking

    found = {"available": torch.cuda.is_available(), "count": torch.cuda.device_count()}
    say("parent", **found, initialized=bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]
    for event in ("child", "launched"):
        child = os.fork()
        if not child:
            began = time.monotonic()
            value: Any = None
            lost = forking.has_lost_devices()
            try:
                value = torch.ones(3, device=device).sum().item()
            except Exception as error:
                value = f"{type(error).__name__}: {str(error)[:100]}"
            say(event, lost=lost, value=value, seconds=round(time.monotonic() - began, 2))
            os._exit(0)
        os.waitpid(child, 0)
        if event == "child" and hasattr(torch, "accelerator"):
            # What `torchrun --nproc-per-node auto` and its launcher's configuration do first.
            torch.accelerator.is_available()
            torch.accelerator.device_count()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    said.close()
