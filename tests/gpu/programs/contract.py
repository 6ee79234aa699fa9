"""One rank of what the project assumes of NCCL and torch, without the project: `contract.py CHECK RANK SIZE FILE`.

With FAKE=1 it is what the backend does that behaves like NCCL, on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DRY = os.environ.get("DRY") == "1"
FAKE: Any = importlib.import_module("worker.fake_nccl") if DRY and os.environ.get("FAKE") == "1" else None
BACKEND = "fakenccl" if FAKE else "gloo" if DRY else "nccl"
device = torch.device("cpu") if DRY else torch.device("cuda", 0)
rank, size, file = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
said = open(os.environ["SAID"], "a", buffering=1)  # noqa: SIM115, PTH123 - until the process ends
start = time.monotonic()


def say(event: str, **values: Any) -> None:
    said.write(json.dumps({"event": event, "after": round(time.monotonic() - start, 3)} | values) + "\n")


def join(name: str = "first", ranks: int = size) -> Any:
    """Enter a world; its store, with which its ranks can wait for each other whatever their communicators do."""
    store: Any = dist.FileStore(f"{file}.{name}", ranks)  # type: ignore[attr-defined]
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=ranks, timeout=limit)
    return store


def synchronize() -> None:
    """Wait for the whole device."""
    if FAKE:
        FAKE.synchronize_all()
    elif not DRY:
        torch.cuda.synchronize()


def synchronize_stream() -> None:
    """Wait for what the script's stream waits for."""
    if FAKE:
        FAKE.synchronize()
    elif not DRY:
        torch.cuda.current_stream().synchronize()


def within(seconds: float, function: Callable[[], Any]) -> tuple[bool | str, threading.Thread]:
    """Whether it returns in this time, or what it raises; the thread in which it does."""
    found: list[bool | str] = [False]

    def run() -> None:
        if not DRY:
            torch.cuda.set_device(device)
        try:
            function()
            found[0] = True
        except Exception as error:
            found[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0], thread


def attempt(event: str, function: Callable[[], Any], **values: Any) -> bool:
    """Do it, and say what came of it."""
    began = time.monotonic()
    raised = None
    try:
        function()
    except Exception as error:
        raised = f"{type(error).__name__}: {str(error)[:120]}"
    say(event, raised=raised, seconds=round(time.monotonic() - began, 3), **values)
    return raised is None


def lose_last(x: torch.Tensor) -> None:
    """Every rank has reduced a few times; then the last one dies."""
    global start  # noqa: PLW0603 - the time of the loss
    for _ in range(3):
        dist.all_reduce(x.clone())
    synchronize()
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    start = time.monotonic()


def death() -> None:
    """What a value is worth that depends on a collective whose peer has died, after an abort."""
    join()
    x = torch.full((4 << 20,), float(rank + 1), device=device)
    (x * 0.5)[:: 1 << 20].tolist()  # the kernels are loaded, which waits for the device
    lose_last(x)
    world: Any = dist.group.WORLD

    def abort() -> None:
        time.sleep(1.0)
        attempt("abort", world.abort)

    thread = threading.Thread(target=abort, daemon=True)
    thread.start()
    values: list[float] = []
    attempt("all_reduce", lambda: dist.all_reduce(x))
    update = x * 0.5  # an optimizer, say

    def read() -> None:
        if FAKE:
            FAKE.synchronize()  # a device is waited for by the reading itself
        values.extend(update[:: 1 << 20].tolist())

    attempt("read", read)
    say("values", values=values)
    thread.join()
    attempt("collective after the abort", lambda: dist.all_reduce(torch.ones(1, device=device)))
    attempt("destroy", dist.destroy_process_group)
    say("state", initialized=dist.is_initialized())
    got: list[float] = []

    def enter_next() -> None:
        store = join("next", size - 1)
        y = torch.full((1 << 20,), float(rank + 1), device=device)
        dist.all_reduce(y)
        got.append(y[0].item())
        store.add("done", 1)
        while store.add("done", 0) < size - 1 and time.monotonic() - start < 30:
            time.sleep(0.05)  # a rank that leaves takes its part of the sum with it

    attempt("next world", enter_next)
    say("next", value=got[0] if got else None)
    os._exit(0)


def streams() -> None:
    """What waits for a collective that is stuck, and what does not; the first two ranks have exchanged a message."""
    join()
    x, there, here = (torch.full((1 << 20,), float(rank + 1), device=device) for _ in range(3))
    if rank < 2:
        for one in (0, 1):
            dist.send(there, 1 - rank) if rank == one else dist.recv(here, 1 - rank)
    lose_last(x)
    work: Any = dist.all_reduce(x, async_op=True)
    say("begun", returned=within(2.0, synchronize_stream)[0])
    time.sleep(0.2)
    say("completed", before=work.is_completed())

    def exchange() -> None:
        for one in (0, 1):
            dist.send(there, 1 - rank) if rank == one else dist.recv(here, 1 - rank)
        synchronize_stream()

    say("message", returned=within(3.0, exchange)[0])

    def wait_for_it() -> None:
        work.wait()
        synchronize_stream()

    returned, thread = within(1.5, wait_for_it)
    say("waited", returned=returned)
    whole, other = within(1.0, synchronize)
    say("whole", returned=whole)
    made, pair = (within(2.0, lambda: dist.send(there, size - 1))) if rank == 0 else (False, None)
    world: Any = dist.group.WORLD
    world.abort()
    for waiting in (thread, other):
        waiting.join(5.0)
    say("aborted", ended=not thread.is_alive() and not other.is_alive(), completed=work.is_completed())
    if pair is not None:
        pair.join(3.0)
        say("first message", returned=made, freed=not pair.is_alive())
    os._exit(0)


def collectives() -> None:
    """The values of all that scripts and the project call; those that are wrong."""
    join()
    mine = torch.full((4,), float(rank + 1), device=device)
    halves = [mine[:2].clone(), mine[2:].clone()]
    pair = [torch.empty(4, device=device) for _ in range(2)]
    short = [torch.empty(2, device=device) for _ in range(2)]
    peer, wrong = 1 - rank, []

    def expect(name: str, call: Callable[[], Any], found: Callable[[], Any], right: Any) -> None:
        try:
            call()
            synchronize_stream()
            value = found()
        except Exception as error:
            value = f"{type(error).__name__}: {str(error)[:100]}"
        if value != right:
            wrong.append(f"{name}: {value}")

    def heads(tensors: list[torch.Tensor]) -> list[float]:
        return [one[0].item() for one in tensors]

    x, y, flat, half = mine.clone(), mine.clone(), torch.empty(8, device=device), short[0]
    objects: list[Any] = [None, None]
    at_root = rank == 0
    messages = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, pair[0], peer)]
    expect("all_reduce", lambda: dist.all_reduce(x), x[0].item, 3.0)
    expect("reduce", lambda: dist.reduce(y, 0), lambda: y[0].item() if at_root else 3.0, 3.0)
    expect("broadcast", lambda: dist.broadcast(x, 1), x[0].item, 3.0)
    expect("all_gather", lambda: dist.all_gather(pair, mine), lambda: heads(pair), [1.0, 2.0])
    expect("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(flat, mine), flat[4].item, 2.0)
    expect("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(half, mine), half[0].item, 3.0)
    expect("reduce_scatter", lambda: dist.reduce_scatter(half, halves), half[0].item, 3.0)
    expect("all_to_all_single", lambda: dist.all_to_all_single(x, mine), x[2].item, 2.0)
    expect("all_to_all", lambda: dist.all_to_all(short, halves), lambda: heads(short), [1.0, 2.0])
    expect("gather", lambda: dist.gather(mine, pair if at_root else None, 0), lambda: heads(pair), [1.0, 2.0])
    given = [mine * 5, mine * 6] if at_root else None
    expect("scatter", lambda: dist.scatter(x, given, 0), x[0].item, 5.0 + rank)
    expect("all_gather_object", lambda: dist.all_gather_object(objects, rank), lambda: objects, [0, 1])
    said = [{"a": 1} if at_root else None]
    expect("broadcast_object_list", lambda: dist.broadcast_object_list(said, 0), lambda: said, [{"a": 1}])
    expect("batch_isend_irecv", lambda: [one.wait() for one in dist.batch_isend_irecv(messages)],
           pair[0][0].item, float(peer + 1))  # fmt: skip
    expect("barrier", lambda: dist.barrier(device_ids=None if DRY else [0]), lambda: 0, 0)
    say("collectives", wrong=wrong)
    os._exit(0)


def watchdog() -> None:
    """How long a process lives whose peer has died, if nobody aborts."""
    join()
    x = torch.ones(4 << 20, device=device)
    lose_last(x)
    attempt("all_reduce", lambda: dist.all_reduce(x))

    def tell() -> None:
        synchronize_stream()
        say("freed")

    threading.Thread(target=tell, daemon=True).start()
    while time.monotonic() - start < float(os.environ["LIVE"]):
        say("alive")
        time.sleep(0.1)
    say("survived")
    os._exit(0)


def two() -> None:
    """Two communicators, both with a kernel that waits for a peer that is dead; HOW they are aborted."""
    join()
    other: Any = dist.new_group(list(range(size)))
    world: Any = dist.group.WORLD
    a, b = (torch.ones(4 << 20, device=device) for _ in range(2))
    dist.all_reduce(b, group=other)
    lose_last(a)
    attempt("first", lambda: dist.all_reduce(a, async_op=True))
    attempt("second", lambda: dist.all_reduce(b, group=other, async_op=True))
    time.sleep(0.2)
    first, second = (threading.Thread(target=one.abort, daemon=True) for one in (world, other))
    began = time.monotonic()
    first.start()
    if os.environ["HOW"] == "sequential":
        first.join(6.0)
        say("alone", ended=not first.is_alive(), seconds=round(time.monotonic() - began, 3))
    began = time.monotonic()
    second.start()
    for one in (first, second):
        one.join(10.0)
    ended = not first.is_alive() and not second.is_alive()
    say("aborted", seconds=round(time.monotonic() - began, 3), ended=ended)
    os._exit(0)


def creation() -> None:
    """The last rank never makes its communicator: is the other one, which makes its own, freed by an abort?"""
    if rank == size - 1:
        time.sleep(12)
        os._exit(0)
    done = threading.Event()

    def make() -> None:
        try:
            store = dist.FileStore(f"{file}.first", size)  # type: ignore[attr-defined]
            more = {} if DRY else {"device_id": device}
            dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, **more)  # type: ignore[arg-type]
        except Exception as error:
            say("raised", text=f"{type(error).__name__}: {str(error)[:120]}")
        done.set()

    threading.Thread(target=make, daemon=True).start()
    say("returned", within=done.wait(8.0))
    os._exit(0)


def worlds() -> None:
    """The memory of a process that enters one world after the other, and leaves each as HOW says."""
    x = torch.ones(1 << 20, device=device)
    for number in range(20):
        join(f"world{number}")
        dist.all_reduce(x)
        synchronize()
        if os.environ["HOW"] == "abort":
            world: Any = dist.group.WORLD
            world.abort()
        dist.destroy_process_group()
        x.fill_(1.0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:  # noqa: PTH123
            say("world", mib=int(file.read().split()[1]) * 4096 >> 20)
    os._exit(0)


globals()[sys.argv[1]]()
