"""Every collective and point-to-point operation, with verified results, in the current world.

`run_selftest` is called on all ranks of a world. `python -m elasticjob.diagnose.selftest` is one rank of the world that
`elasticjob doctor` creates on one machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import torch
import torch.distributed as dist

from elasticjob.collectives import messages, tensors, unequal
from elasticjob.context.setup import World, init
from elasticjob.diagnose.devices import LEAST_REDUCE
from elasticjob.diagnose.findings import FAIL, OK, WARN, Finding

_MANY = 12  # above this number of ranks, only neighbours are paired
_PAYLOAD = 1 << 18  # float32 numbers in a pair's message: 1 MiB
_REDUCED = 64 << 20  # bytes of an all_reduce that is timed
_CLOCK_SPREAD = 2.0


def _test_all_reduce(world: World) -> bool:
    n = world.world_size
    results = {
        "sum": n * (n + 1) / 2,
        "min": 1.0,
        "max": float(n),
        "mean": (n + 1) / 2,
    }
    return all(
        tensors.all_reduce(torch.tensor([world.rank + 1.0], device=world.device), op=op).item() == expected
        for op, expected in results.items()
    )


def _test_broadcast(world: World) -> bool:
    tensor = torch.full((8,), float(world.rank), device=world.device)
    dist.broadcast(tensor, world.world_size - 1)
    return bool((tensor == world.world_size - 1).all())


def _test_all_gather(world: World) -> bool:
    got = tensors.all_gather(torch.full((3,), float(world.rank), device=world.device), stack=True)
    return bool(got[:, 0].tolist() == list(range(world.world_size)))


def _test_unequal(world: World) -> bool:
    parts = unequal.all_gather_unequal(torch.full((world.rank, 2), float(world.rank), device=world.device))
    return [list(part.shape) for part in parts] == [[rank, 2] for rank in range(world.world_size)]


def _test_gather(world: World) -> bool:
    parts = tensors.gather(torch.tensor([world.rank], device=world.device))
    return parts is None or [part.item() for part in parts] == list(range(world.world_size))


def _test_scatter(world: World) -> bool:
    got = torch.empty(2, device=world.device)
    parts = [torch.full((2,), float(rank), device=world.device) for rank in range(world.world_size)]
    dist.scatter(got, parts if world.rank == 0 else None, src=0)
    return bool((got == world.rank).all())


def _test_ring(world: World) -> bool:
    after, before = (world.rank + 1) % world.world_size, (world.rank - 1) % world.world_size
    if after == world.rank:
        return True
    sent = torch.full((4,), float(world.rank), device=world.device)
    got = torch.empty(4, device=world.device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)])
    for work in works:
        work.wait()
    return bool((got == before).all())


TESTS: dict[str, Callable[[World], bool]] = {
    "all_reduce": _test_all_reduce,
    "broadcast": _test_broadcast,
    "all_gather": _test_all_gather,
    "unequal shapes": _test_unequal,
    "gather": _test_gather,
    "scatter": _test_scatter,
    "point to point": _test_ring,
}


def run_selftest(world: World) -> list[Finding]:
    """Run the tests on every rank; the rank that got a wrong result reports it."""
    if "nccl" not in world.backend:
        world = replace(world, device=torch.device("cpu"))  # gloo sends nothing from the memory of a device
    findings: list[Finding] = []
    for name, test in TESTS.items():
        started = time.monotonic()
        try:
            good = test(world)
        except RuntimeError as error:
            text = str(error).splitlines()[0]
            # The other ranks cannot continue either: a failed collective leaves the world unusable.
            remedy = "look at the other ranks; check the interface and NetworkPolicy"
            return [*findings, Finding(name, FAIL, text, remedy, world.rank)]
        took = f"{(time.monotonic() - started) * 1000:.1f} ms"
        if good:
            findings.append(Finding(name, OK, took, rank=world.rank))
        else:
            remedy = "the data was changed on the way: drain the node or its network card"
            findings.append(Finding(name, FAIL, "a wrong result", remedy, world.rank))
    findings += _check_clocks(world)
    findings += _check_pairs(world)
    if world.device.type == "cuda" and 1 < world.world_size == world.local_world_size:
        findings.append(judge_reduce(_measure_reduce(world), world.rank))
    return findings


def _measure_reduce(world: World) -> float:
    """GB/s at which the devices of this machine reduce, of each device's link."""
    numbers = torch.ones(_REDUCED // 4, device=world.device)
    seconds = []
    for _ in range(4):  # the first one makes the connections
        torch.cuda.synchronize()
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(numbers)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    return 2 * (world.world_size - 1) / world.world_size * _REDUCED / min(seconds[1:]) / 1e9


def judge_reduce(rate: float, rank: int) -> Finding:
    """Whether the links between the devices of a machine are fast enough to be sound."""
    text = f"{rate:.1f} GB/s between the devices of this machine"
    if rate < LEAST_REDUCE:
        remedy = "drain the node, or look at its links (nvidia-smi topo -m, nvidia-smi nvlink --status)"
        return Finding("all_reduce speed", FAIL, f"only {text}", remedy, rank)
    return Finding("all_reduce speed", OK, text, rank=rank)


def _check_clocks(world: World) -> list[Finding]:
    dist.barrier()
    now = torch.tensor([time.time()], dtype=torch.float64, device=world.device)
    times = tensors.all_gather(now).tolist()
    ahead = time_offsets(times)[world.rank]
    status = WARN if abs(ahead) > _CLOCK_SPREAD else OK
    return [Finding("clocks", status, f"{ahead:+.2f} s from the others", "set the node's clock (NTP)", world.rank)]


def time_offsets(times: Sequence[float]) -> list[float]:
    """The offset of each clock from the median, in the unit of `times`."""
    middle = statistics.median(times)
    return [one - middle for one in times]


def list_pairs(size: int) -> list[tuple[int, int]]:
    """The pairs to test: all, or in a large world each rank with its neighbour."""
    if size <= _MANY:
        return [(a, b) for a in range(size) for b in range(a + 1, size)]
    return [(a, (a + 1) % size) for a in range(size)]


def find_slow_pairs(seconds: dict[tuple[int, int], float], factor: float = 5.0) -> list[tuple[int, int]]:
    """The pairs that take more than `factor` times as long as the median pair."""
    if len(seconds) < 3:
        return []
    usual = statistics.median(seconds.values())
    return sorted(pair for pair, took in seconds.items() if took > factor * usual and took > 0.05)


def _check_pairs(world: World) -> list[Finding]:
    """Test one pair after the other, so that each has the network to itself."""
    mine: dict[tuple[int, int], float] = {}
    numbers = torch.ones(_PAYLOAD, device=world.device)
    for pair in list_pairs(world.world_size):
        if world.rank in pair:
            mine[pair] = _time_pair(world, pair, numbers)
        dist.barrier()
    slowest: dict[tuple[int, int], float] = {}
    for some in messages.all_gather_json([(first, second, took) for (first, second), took in mine.items()]):
        for first, second, took in some:
            slowest[first, second] = max(took, slowest.get((first, second), 0.0))
    slow = [pair for pair in find_slow_pairs(slowest) if world.rank in pair]
    if slow:
        text = ", ".join(f"{a}-{b}: {slowest[a, b] * 1000:.0f} ms" for a, b in slow)
        remedy = "a rank in several slow pairs has a slow node or link: leave it out"
        return [Finding("pairs", WARN, f"slow: {text}", remedy, world.rank)]
    return [Finding("pairs", OK, f"{len(mine)} tried", rank=world.rank)]


def _time_pair(world: World, pair: tuple[int, int], numbers: torch.Tensor) -> float:
    first, second = pair
    for turn in range(2):  # the first turn also opens the connection
        started = time.monotonic()
        if world.rank == first:
            dist.send(numbers, second)
            dist.recv(torch.empty_like(numbers), second)
        else:
            got = torch.empty_like(numbers)
            dist.recv(got, first)
            dist.send(got, first)
        took = time.monotonic() - started
        if turn:
            return took
    return 0.0


def main() -> None:
    """Run one rank of the doctor's own world, and print its findings as JSON."""
    with init(backend=sys.argv[1] if len(sys.argv) > 1 else None, timeout=30, threads=1) as world:
        findings = run_selftest(world)
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")


if __name__ == "__main__":
    main()
