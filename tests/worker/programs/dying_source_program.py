"""Two ranks train and two join; the source of their state dies at one point of the transfer, and the rest goes on.

    dying_source_program.py KIND STATE POINTS

For each point four children are forked, for a few points at a time. A point is the number of a call of a collective or
of a send in the dying rank, or with a decimal point the part of its bytes that it has sent. Those that are left meet in
a second world, in which the joiners have the lowest ranks: they must get what was trained, and never agree on their own
initial weights. With the kind `device` the state travels like that of a device, over `worker.fake_nccl`; with `host`
over gloo. The state is `replicated`; or the two have kept the `whole` of a sharded model, or all `shards` of it.
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
from torch.distributed import fsdp  # here: the ranks that are forked share the import

from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.sessions.process_groups import ProcessGroups
from elasticjob.sessions.recovery import Piece, StateLostError
from elasticjob.sessions.sharded import parts
from elasticjob.sessions.sharded.copies import ShardCopies
from elasticjob.sessions.sharded.model import ShardedModelState
from elasticjob.torchcompat import groups, waits
from worker import fake_nccl
from worker.programs.saying import say
from worker.programs.sending import die_after

KIND, STATE, POINTS = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
BACKEND = fake_nccl.NAME if KIND == "device" else "gloo"
OPERATIONS = ("broadcast", "isend", "irecv", "all_gather", "barrier")
STEP = 40
AT_ONCE = 3  # points: their ranks wait most of the time
NUMBERS, TENSORS, ROWS = 1_500_000, 3, 5_001
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


class Numbers(torch.nn.Module):
    """A model that can be sharded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.numbers = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(ROWS, 300)) for _ in range(TENSORS)])
        self.register_buffer("count", torch.zeros(3))

    def forward(self) -> torch.Tensor:
        return sum((one.sum() for one in self.numbers), torch.zeros(()))


def build(mesh: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = Numbers()
    fsdp.fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_whole() -> dict[str, Any]:
    """The state of the whole model after a step."""
    model = Numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "trainable": names}


def cut(tensor: torch.Tensor, count: int, index: int) -> Any:
    """A part of a tensor as it is kept between two worlds."""
    if tensor.numel() < ROWS:
        return tensor.clone()  # a buffer
    if count == 1:
        return parts.mark_whole(tensor.clone())
    start, stop = parts.find_span(ROWS, count, index)
    return {"elasticjob.shard": tensor[start:stop].clone(), "dim": 0, "length": ROWS}


def make_sharded(trained: bool) -> tuple[Memory, list[torch.Tensor]]:
    """And what the parameters are after the step."""
    copies = ShardCopies(1) if STATE == "shards" else None
    state = ShardedModelState(build, (lambda *_: None, lambda *_: None), None, copies)
    memory, whole = Memory(state, None, {}), train_whole()
    tensors, count = parts.find_tensors(whole), 1 if STATE == "whole" else 2
    if trained:
        memory.committed = STEP
        for index in range(count):
            made = [cut(one, count, index) for one in tensors.values()]
            found = dict(zip(tensors, made, strict=True))
            state._held[Piece(STEP, 1, count, index)] = parts.replace_tensors(whole, found.__getitem__)
    return memory, [one for path, one in tensors.items() if one.numel() > ROWS]


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


def enter(process_groups: ProcessGroups, memory: Memory, point: str, rank: int, size: int) -> Any:
    inner = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]
    store: Any = dist.PrefixStore(f"{point} of {size}", inner)  # type: ignore[attr-defined]
    groups.name_groups_anew()
    process_groups._world = waits.World(has_others=process_groups.is_queued)
    process_groups._connected = set()
    waits.wait_for(process_groups._world)
    with process_groups.owning():
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
        flags = dist.group.WORLD if BACKEND == "gloo" else dist.new_group(backend="gloo")
        memory.model_state.connect(6 - size)
        process_groups._make_communicators(process_groups._find_unconnected(), lambda: False)
    if STATE != "replicated":
        memory.model_state.bind(6 - size)
    return flags


def leave_when_told(process_groups: ProcessGroups, pipe: int, is_out: threading.Event) -> None:
    """What an agent and a session do: the end of the dying rank is known to all after a while, and frees them."""
    os.read(pipe, 1)  # until the rank that has the other end is gone
    while not is_out.wait(0.1):
        process_groups.abort()


def is_trained(memory: Memory, known: list[torch.Tensor]) -> bool:
    """`known`: the initial parameters, or for a sharded model parameters and momentum after the step."""
    fake_nccl.synchronize()
    if STATE == "replicated":
        now = list(memory.model_state.state()["model"].values())
        return all(torch.equal(one, start + 1.0) for one, start in zip(now, known, strict=True))
    part = memory.model_state.part()
    mine = [one for one in parts.find_tensors(part).values() if one.ndim == 2]
    start, stop = parts.find_span(ROWS, dist.get_world_size(), dist.get_rank())
    return len(mine) == len(known) and all(
        torch.equal(one, two[start:stop]) for one, two in zip(mine, known, strict=True)
    )


def take_part(rank: int, point: str, pipe: int) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    if KIND == "device":
        fake_nccl.put_state_on_device()
    lives = point == "-1"
    memory, known = (make_memory if STATE == "replicated" else make_sharded)(trained=rank < 2)
    process_groups = ProcessGroups(BACKEND, 600)
    flags = enter(process_groups, memory, point, rank, 4)
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
    had = memory.committed if is_trained(memory, known) else -1
    before = memory.committed
    is_lost = False
    if not lives:
        is_out.set()
        teller.join()
        del flags
        if memory.committed >= 0 and STATE != "replicated":
            memory.model_state.keep(memory.committed, 2)
        memory.model_state.unbind()
        process_groups.leave(broken=True)
        try:
            memory.agree(enter(process_groups, memory, point, {2: 0, 3: 1, 1: 2}[rank], 3))
        except StateLostError:
            is_lost = True
    result = {"step": memory.committed, "trained": is_trained(memory, known), "before": before, "had": had}
    say(f"{point} {rank}", result | {"broke": broke, "lost": is_lost})
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
