"""One rank of the collectives benchmark. It alternates each operation over gloo with the same bytes over raw TCP.

The raw peer is a ring of plain sockets between the same processes: every rank sends to the next and receives from the
previous one at the same time, with the same traffic as a ring algorithm. Rank 0 prints one JSON line for each
measurement: `{"op", "bytes", "via", "seconds"}`. `via` is `torch`, `elasticjob` or `tcp`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

CHUNK = 1 << 20


class Ring:
    """A socket to the next rank and one from the previous rank."""

    def __init__(self, rank: int, world: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        ports: list[int] = [0] * world
        dist.all_gather_object(ports, listener.getsockname()[1])
        self.out = socket.create_connection(("127.0.0.1", ports[(rank + 1) % world]))
        self.into, _ = listener.accept()
        listener.close()
        for one in (self.out, self.into):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(CHUNK)

    def exchange(self, size: int, data: memoryview) -> None:
        """Send and receive `size` bytes at the same time."""
        sender = threading.Thread(target=self._send, args=(size, data)) if size > 32768 else None
        if sender is None:
            self.out.sendall(data[:size])
        else:
            sender.start()
        left, view = size, memoryview(self.buffer)
        while left:
            left -= self.into.recv_into(view[: min(left, CHUNK)])
        if sender is not None:
            sender.join()

    def _send(self, size: int, data: memoryview) -> None:
        for begin in range(0, size, CHUNK):
            self.out.sendall(data[begin : min(size, begin + CHUNK)])


def measure(step: Callable[[], object], seconds: float) -> float:
    """Median seconds of one step; all ranks agree on the number of steps, or they would wait for each other
    for ever.
    """
    dist.barrier()
    began = time.perf_counter()
    step()
    once = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(once, dist.ReduceOp.MAX)
    times = []
    for _ in range(max(3, min(200, int(seconds / max(1e-6, once.item()))))):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    found = torch.tensor([statistics.median(times)], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found.item())


def torch_steps(count: int, rank: int, world: int) -> dict[str, Callable[[], object]]:
    """The operations as a torch user writes them; `count` floats are the whole data."""
    data, part = torch.ones(count), torch.ones(max(1, count // world))
    whole, scratch = torch.empty(part.numel() * world), torch.empty(count)

    def ping() -> None:
        peer = rank ^ 1
        if peer < world:
            work = dist.isend(data, peer)
            dist.recv(scratch, peer)
            if work is not None:
                work.wait()

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(data),
        "all_gather": lambda: gather(whole, part),
        "all_gather_new": lambda: gather(part.new_empty(whole.numel()), part),
        "reduce_scatter": lambda: scatter(part, whole),
        "broadcast": lambda: dist.broadcast(data, 0),
        "send_recv": ping,
    }


def elasticjob_steps(count: int, world: int) -> dict[str, Callable[[], object]]:
    """The same with our functions, if there is one. Ours return the result: `out` or a new tensor."""
    import elasticjob

    data, part = torch.ones(count), torch.ones(max(1, count // world))
    whole = torch.empty(part.numel() * world)
    return {
        "all_reduce": lambda: elasticjob.all_reduce(data),
        "all_gather": lambda: elasticjob.all_gather(part, out=whole),
        "all_gather_new": lambda: elasticjob.all_gather(part),
    }


def moved(op: str, size: int, world: int) -> int:
    """The minimum number of bytes that each rank must send, which raw TCP has to move."""
    if op == "all_reduce":
        return 2 * size * (world - 1) // world
    if op in ("all_gather", "all_gather_new", "reduce_scatter"):
        return size * (world - 1) // world
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--ops", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vias", nargs="+", default=["torch", "elasticjob", "tcp"])
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ring = Ring(rank, world)
    data = memoryview(bytearray(CHUNK)).cast("B")
    for size in args.sizes:
        count = max(1, size // 4)
        steps = {"torch": torch_steps(count, rank, world)}
        if "elasticjob" in args.vias:
            steps["elasticjob"] = elasticjob_steps(count, world)
        for op in args.ops:
            need = max(1, moved(op, size, world))
            block = memoryview(bytearray(need)) if need > CHUNK else data
            ways: dict[str, Callable[[], object]] = {via: steps[via][op] for via in steps if op in steps[via]}
            if "tcp" in args.vias:
                ways["tcp"] = lambda need=need, block=block: ring.exchange(need, block)  # type: ignore[misc]
            for _ in range(args.repeats):
                for via, step in ways.items():
                    took = measure(step, args.seconds)
                    if rank == 0:
                        print(json.dumps({"op": op, "bytes": size, "via": via, "seconds": took}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
