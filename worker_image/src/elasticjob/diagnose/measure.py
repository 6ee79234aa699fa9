"""Measures a collective in the current world, and the limit of its link. All ranks call these functions."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticjob.torchcompat import groups

if TYPE_CHECKING:
    import torch

    from elasticjob.context.setup import World

_RAW_BYTES = 64 << 20


def _prepare(operation: str, size: int, world: World) -> Callable[[], Any]:
    """The call to measure, with its buffers allocated."""
    import torch
    import torch.distributed as dist

    n, place = world.world_size, world.device
    count = max(1, size // 4)
    share = max(1, count // n)
    whole = torch.ones(
        share * n if operation in ("all_gather", "reduce_scatter", "all_to_all") else count, device=place
    )
    if operation == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    if operation == "reduce":
        return lambda: dist.reduce(whole, 0)
    part = torch.ones(share, device=place)
    if operation == "all_gather":
        gather = groups.find_all_gather()
        return lambda: gather(whole, part)
    if operation == "reduce_scatter":
        scatter = groups.find_reduce_scatter()
        return lambda: scatter(part, whole)
    if operation == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole)
    return _prepare_send_recv(whole, world)


def _prepare_send_recv(whole: torch.Tensor, world: World) -> Callable[[], Any]:
    """Each rank sends to the next and receives from the previous one."""
    import torch
    import torch.distributed as dist

    got = torch.empty_like(whole)
    after, before = (world.rank + 1) % world.world_size, (world.rank - 1) % world.world_size

    def exchange() -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, whole, after), dist.P2POp(dist.irecv, got, before)]):
            work.wait()

    return exchange


def measure(operation: str, size: int, world: World, least_seconds: float) -> float:
    """Seconds per call with `size` bytes: the mean over at least `least_seconds` of calls, on the slowest rank.

    Raises RuntimeError or NotImplementedError if the backend does not have the operation.
    """
    import torch
    import torch.distributed as dist

    call = _prepare(operation, size, world)
    for _ in range(3):
        call()
    calls = 4
    while True:
        _synchronize(world)
        dist.barrier()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        _synchronize(world)
        took = torch.tensor([time.perf_counter() - started], device=world.device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)  # every rank makes the same decision
        if took.item() >= least_seconds or calls >= 1 << 14:
            return float(took.item()) / calls
        calls *= 2 if took.item() > least_seconds / 4 else 4


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def measure_raw(world: World) -> float:
    """The limit in 10^9 bytes per second: a device copy for NCCL, otherwise one TCP stream between ranks 0 and 1."""
    import torch

    if world.device.type == "cuda" and "nccl" in world.backend:
        source = torch.ones(_RAW_BYTES, dtype=torch.uint8, device=world.device)
        target = torch.empty_like(source)
        target.copy_(source)
        _synchronize(world)
        started = time.perf_counter()
        for _ in range(20):
            target.copy_(source)
        _synchronize(world)
        return 20 * _RAW_BYTES / (time.perf_counter() - started) / 1e9
    from elasticjob.collectives import messages

    result = 0.0
    if world.world_size > 1:
        listener = _listen() if world.rank == 0 else None
        host, port = messages.broadcast_json(None if listener is None else listener.getsockname()[:2], 0)
        if listener is not None:
            result = _receive_all(listener)
        elif world.rank == 1:
            _send_all((host, port))
        result = float(messages.broadcast_json(result, 0))
    return result


def _listen() -> socket.socket:
    from elasticjob.context.context import current
    from elasticjob.context.network import own_address

    here = current()
    is_local = here.world_size == here.local_world_size
    return socket.create_server(("127.0.0.1" if is_local else own_address(), 0))


def _receive_all(listener: socket.socket) -> float:
    buffer = bytearray(1 << 20)
    with listener:
        listener.settimeout(30)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(30)
        connection.recv_into(buffer, 1)
        started = time.perf_counter()
        received = 0
        while count := connection.recv_into(buffer):
            received += count
    return received / (time.perf_counter() - started) / 1e9


def _send_all(address: tuple[str, int]) -> None:
    block = bytes(1 << 20)
    with socket.create_connection(address, timeout=30) as connection:
        for _ in range(_RAW_BYTES // len(block) * 2):
            connection.sendall(block)
