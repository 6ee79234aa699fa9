"""Two ranks train and two join; the source of their state dies at one point of the transfer, and the rest goes on.

    dying_source_program.py KIND POINTS

For each point, a call of a collective or of a send in the dying rank, four children are forked. Those that are left
meet in a second world, in which the joiners have the lowest ranks: they must get what was trained, and never agree on
their own initial weights. With the kind `device` the tensors travel like those of a device, in broadcasts that are
only queued.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import skeletons
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.torchcompat import groups

KIND, POINTS = sys.argv[1], [int(point) for point in sys.argv[2].split(",")]
OPERATIONS = ("broadcast", "isend", "irecv", "all_gather", "barrier")
STEP = 40
split = skeletons.split


def on_device(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The slots of a state whose tensors are on a device."""
    return _move(split(value, tensors))


def _move(skeleton: Any) -> Any:
    if isinstance(skeleton, skeletons.Slot):
        return dataclasses.replace(skeleton, device="cuda")
    if isinstance(skeleton, dict):
        return {key: _move(item) for key, item in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)([_move(item) for item in skeleton])
    return skeleton


def make_memory(trained: bool) -> tuple[Memory, list[torch.Tensor]]:
    """All scripts seed the same initial weights, so those of two joiners are equal."""
    torch.manual_seed(0)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(1_500_000)) for _ in range(3)])
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


def enter(process_groups: ProcessGroups, point: int, rank: int, size: int) -> Any:
    inner = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]
    store: Any = dist.PrefixStore(f"{point} of {size}", inner)  # type: ignore[attr-defined]
    groups.name_groups_anew()
    with process_groups.owning():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return dist.group.WORLD


def leave_when_told(process_groups: ProcessGroups, pipe: int, is_out: threading.Event) -> None:
    """What an agent and a session do: the end of the dying rank is known to all after a while, and frees them."""
    os.read(pipe, 1)  # until the rank that has the other end is gone
    while not is_out.wait(0.1):
        process_groups.abort()


def queue_broadcasts() -> None:
    """A broadcast as on a device: it is only queued, does not raise, and leaves anything in its memory."""
    broadcast = dist.broadcast

    def queue(tensor: torch.Tensor, src: int, group: Any = None) -> None:
        if group is not None:
            broadcast(tensor, src=src, group=group)
            return
        try:
            broadcast(tensor, src=src)
        except RuntimeError:
            if dist.get_rank() != src:
                tensor[: tensor.numel() // 2].fill_(7)

    setattr(dist, "broadcast", queue)  # noqa: B010


def take_part(rank: int, point: int, pipe: int) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    if KIND == "device":
        skeletons.split = on_device
        queue_broadcasts()
    memory, initial = make_memory(trained=rank < 2)
    process_groups = ProcessGroups("gloo", 60)
    flags = enter(process_groups, point, rank, 4)
    broke, is_out = "", threading.Event()
    teller = threading.Thread(target=leave_when_told, args=[process_groups, pipe, is_out], daemon=True)
    if rank:
        teller.start()
    try:
        dist.barrier(group=flags)
        if rank == 0 and point >= 0:
            die_at(point)
        memory.agree(flags)
        if rank == 0 and point >= 0:
            print(json.dumps({"check": f"{point} past the end", "result": True}), flush=True)
            os._exit(0)
        dist.barrier(group=flags)
    except RuntimeError as error:
        broke = str(error).splitlines()[0]
    if point >= 0:
        is_out.set()
        teller.join()
        del flags
        process_groups.leave(broken=True)
        step_before = memory.committed
        memory.agree(enter(process_groups, point, {2: 0, 3: 1, 1: 2}[rank], 3))
    else:
        step_before = memory.committed
    now = list(memory.model_state.state()["model"].values())
    is_trained = all(torch.equal(one, start + 1.0) for one, start in zip(now, initial, strict=True))
    result = {"rank": rank, "step": memory.committed, "trained": is_trained, "before": step_before, "broke": broke}
    print(json.dumps({"check": f"{point} {rank}", "result": result}), flush=True)
    dist.barrier()
    os._exit(0)


for point in POINTS:
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
    codes = {rank: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, rank in children.items()}
    if any(code for rank, code in codes.items() if rank):
        sys.exit(f"point {point}: the ranks ended with {codes}")
