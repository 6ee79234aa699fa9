"""Two ranks train and two join; the source of their state dies at one point of the transfer, and the rest goes on.

    dying_source_program.py KIND POINTS

For each point four children are forked, for a few points at a time. A point is the number of a call of a collective or
of a send in the dying rank, or with a decimal point the part of its bytes that it has sent. Those that are left meet in
a second world, in which the joiners have the lowest ranks: they must get what was trained, and never agree on their own
initial weights. With the kind `device` the state travels like that of a device, over `worker.fake_nccl`; with `host`
over gloo.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.torchcompat import groups
from worker import fake_nccl
from worker.programs.saying import say
from worker.programs.sending import die_after

KIND, POINTS = sys.argv[1], sys.argv[2].split(",")
BACKEND = fake_nccl.NAME if KIND == "device" else "gloo"
OPERATIONS = ("broadcast", "isend", "irecv", "all_gather", "barrier")
STEP = 40
AT_ONCE = 3  # points: their ranks wait most of the time
NUMBERS, TENSORS = 1_500_000, 3
BYTES = 4 * NUMBERS * TENSORS // 2  # that the dying rank sends at least: another one has the state too


def make_memory(trained: bool) -> tuple[Memory, list[torch.Tensor]]:
    """All scripts seed the same initial weights, so those of two joiners are equal."""
    torch.manual_seed(0)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(NUMBERS)) for _ in range(TENSORS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = (lambda *_: None, lambda *_: None)
    memory = Memory(ReplicatedModelState(model, optimizer, hooks, reduces=False), None, {})
    initial = [one.detach().clone() for one in model.parameters()]
    if trained:
        for parameter in model.parameters():
            parameter.data.add_(1.0)
        memory.committed = STEP
    return memory, initial


def die_at(point: int) -> None:
    """End this process before the operation of this number."""
    left = [point]

    def counting(operation: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **more)

        return count

    for name in OPERATIONS:
        setattr(dist, name, counting(getattr(dist, name)))


def enter(process_groups: ProcessGroups, point: str, rank: int, size: int) -> Any:
    inner = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]
    store: Any = dist.PrefixStore(f"{point} of {size}", inner)  # type: ignore[attr-defined]
    groups.name_groups_anew()
    with process_groups.owning():
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
        flags = dist.group.WORLD if BACKEND == "gloo" else dist.new_group(backend="gloo")
        dist.all_reduce(torch.zeros(1))  # makes the communicator
    return flags


def leave_when_told(process_groups: ProcessGroups, pipe: int, is_out: threading.Event) -> None:
    """What an agent and a session do: the end of the dying rank is known to all after a while, and frees them."""
    os.read(pipe, 1)  # until the rank that has the other end is gone
    while not is_out.wait(0.1):
        process_groups.abort()


def is_trained(memory: Memory, initial: list[torch.Tensor]) -> bool:
    fake_nccl.synchronize()
    now = list(memory.model_state.state()["model"].values())
    return all(torch.equal(one, start + 1.0) for one, start in zip(now, initial, strict=True))


def take_part(rank: int, point: str, pipe: int) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    if KIND == "device":
        fake_nccl.put_state_on_device()
    lives = point == "-1"
    memory, initial = make_memory(trained=rank < 2)
    process_groups = ProcessGroups(BACKEND, 600)
    flags = enter(process_groups, point, rank, 4)
    broke, is_out = "", threading.Event()
    teller = threading.Thread(target=leave_when_told, args=[process_groups, pipe, is_out], daemon=True)
    if rank:
        teller.start()
    try:
        dist.barrier(group=flags)
        if rank == 0 and not lives:
            die_after(float(point) * BYTES) if "." in point else die_at(int(point))
        memory.agree(flags)
        if rank == 0 and not lives:
            say(f"{point} past the end", True)
            os._exit(0)
        dist.barrier(group=flags)
    except RuntimeError as error:
        broke = str(error).splitlines()[0]
    had = memory.committed if is_trained(memory, initial) else -1
    before = memory.committed
    if not lives:
        is_out.set()
        teller.join()
        del flags
        process_groups.leave(broken=True)
        memory.agree(enter(process_groups, point, {2: 0, 3: 1, 1: 2}[rank], 3))
    result = {"step": memory.committed, "trained": is_trained(memory, initial), "before": before, "had": had}
    say(f"{point} {rank}", result | {"broke": broke})
    dist.barrier()
    os._exit(0)


def start(point: str) -> dict[int, int]:
    """The four ranks: process -> rank."""
    children = {}
    reading, writing = os.pipe()
    for rank in range(4):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            if rank:
                os.close(writing)
            try:
                take_part(rank, point, reading)
            finally:
                print(f"point {point}, rank {rank}: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)
                os._exit(1)
        children[child] = rank
    os.close(reading)
    os.close(writing)
    return children


def wait(point: str, children: dict[int, int]) -> None:
    codes = {rank: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, rank in children.items()}
    if any(code for rank, code in codes.items() if rank):
        sys.exit(f"point {point}: the ranks ended with {codes}")


running: dict[str, dict[int, int]] = {}
for point in POINTS:
    running[point] = start(point)
    if len(running) == AT_ONCE:
        wait(first := next(iter(running)), running.pop(first))
for point, children in running.items():
    wait(point, children)
