"""A gang of four: every collective of the library, and the checked mode with deliberate mistakes."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist

import elasticjob
from elasticjob.collectives.checked import checked
from elasticjob.errors import BufferTouchedError, CollectiveMismatchError, ConfigurationError
from elasticjob.torchcompat import groups
from worker.programs.saying import say

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def reductions(rank: int) -> None:
    for op in ("sum", "product", "min", "max", "band", "bor", "bxor"):
        say(f"all_reduce {op}", elasticjob.all_reduce(torch.tensor([rank + 1, 6 - rank]), op=op).tolist())
    say("all_reduce mean", elasticjob.all_reduce(torch.tensor([float(rank)]), op="mean").tolist())
    pending = elasticjob.all_reduce(torch.tensor([float(rank)]), async_op=True)
    say("all_reduce async", pending.wait().tolist())
    try:
        elasticjob.all_reduce(torch.tensor([1]), op="mean")
    except ConfigurationError as error:
        say("all_reduce mean of int", str(error))
    try:
        elasticjob.all_reduce(torch.tensor([1]), op="average")
    except ConfigurationError as error:
        say("all_reduce unknown", str(error))


def gathers(rank: int) -> None:
    mine = torch.full((2, 3), float(rank))
    say("all_gather", list(elasticjob.all_gather(mine).shape))
    say("all_gather values", elasticjob.all_gather(mine)[:, 0].tolist())
    say("all_gather stack", list(elasticjob.all_gather(mine, stack=True).shape))
    into = torch.empty(8, 3)
    say("all_gather out", elasticjob.all_gather(mine, out=into) is into and into[:, 0].tolist())
    stacked = torch.empty(4, 2, 3)
    say("all_gather out async", elasticjob.all_gather(mine, out=stacked, async_op=True).wait()[:, 1, 0].tolist())
    try:
        elasticjob.all_gather(mine, out=torch.empty(3))
    except ConfigurationError as error:
        say("all_gather out wrong", str(error))
    say("all_gather scalar", elasticjob.all_gather(torch.tensor(rank)).tolist())
    say("all_gather async", elasticjob.all_gather(mine.t(), async_op=True).wait().shape[0])
    parts = elasticjob.gather(torch.tensor([rank]), dst=2)
    say("gather", None if parts is None else [part.tolist() for part in parts])


def unequal(rank: int) -> None:
    shapes = {
        "first": (rank, 2),
        "any": (2, rank + 1, 4 - rank),
        "dimensions": (1,) * rank,
        "empty": (0, 5),
        "skewed": (1000 if rank == 1 else 1,),
    }
    for name, shape in shapes.items():
        parts = elasticjob.all_gather_unequal(torch.full(shape, float(rank)))
        say(f"unequal {name}", [list(part.shape) for part in parts])
        say(f"unequal {name} values", all(bool((part == i).all()) for i, part in enumerate(parts)))
        gathered = elasticjob.gather_unequal(torch.full(shape, float(rank)), dst=3)
        say(f"gather_unequal {name}", None if gathered is None else [list(part.shape) for part in gathered])
        if gathered is not None:
            say(f"gather_unequal {name} values", all(bool((p == i).all()) for i, p in enumerate(gathered)))
    good = []
    for dtype in DTYPES:
        parts = elasticjob.all_gather_unequal(torch.ones(rank + 1, 3).to(dtype).t())
        expected = [torch.ones(i + 1, 3).to(dtype).t() for i in range(4)]
        same = all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(parts, expected, strict=True))
        good.append(same)
    say("unequal dtypes", good)
    mixed = elasticjob.all_gather_unequal(torch.ones(rank + 1, dtype=DTYPES[rank]))
    say("unequal mixed", [str(part.dtype) for part in mixed])
    conjugate = torch.tensor([complex(rank, 1)]).conj()
    say("unequal conjugate", [part.imag.item() for part in elasticjob.all_gather_unequal(conjugate)])


def sub_groups(rank: int) -> None:
    (mine,) = elasticjob.new_groups([[1, 3], [0, 2]])
    say("group", elasticjob.all_reduce(torch.tensor([rank]), group=mine).item())
    parts = elasticjob.all_gather_unequal(torch.full((rank,), float(rank)), group=mine)
    say("group unequal", [list(part.shape) for part in parts])
    parts2 = elasticjob.gather_unequal(torch.full((rank + 1,), float(rank)), dst=1, group=mine)
    say("group gather_unequal", None if parts2 is None else [part.tolist() for part in parts2])
    outside = dist.new_group([0, 1])
    try:
        elasticjob.all_gather(torch.ones(1), group=outside)
    except ConfigurationError as error:
        say("not a member", str(error))
    try:
        elasticjob.gather(torch.ones(1), dst=2, group=mine)
    except ConfigurationError as error:
        say("no such rank", str(error))


def point_to_point(rank: int) -> None:
    after, before = (rank + 1) % 4, (rank - 1) % 4
    pending = elasticjob.isend(torch.full((rank + 1, 2), rank, dtype=torch.int16), after)
    got = elasticjob.recv(before)
    pending.wait()
    say("ring", [list(got.shape), str(got.dtype), got.flatten()[0].item()])
    if rank == 0:
        elasticjob.send(torch.empty(0, 7), 1)
        buffer = torch.zeros(3)
        pending = elasticjob.isend(buffer, 1)
        buffer += 1  # too early
        try:
            pending.wait()
        except BufferTouchedError as error:
            say("touched", str(error))
    elif rank == 1:
        say("empty", list(elasticjob.recv(0).shape))
        elasticjob.recv(0)


def mistakes(rank: int) -> None:
    def provoke(name: str, wrong: bool) -> None:
        try:
            if name == "order":
                dist.broadcast(torch.ones(4), 0) if wrong else dist.all_reduce(torch.ones(4))
            elif name == "shape":
                dist.all_reduce(torch.ones(5 if wrong else 4))
            elif name == "dtype":
                dist.all_reduce(torch.ones(4, dtype=torch.float64 if wrong else torch.float32))
            elif name == "op":
                dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if wrong else dist.ReduceOp.SUM)
            elif name == "root":
                dist.broadcast(torch.ones(4), 1 if wrong else 0)
            elif not wrong:  # missing
                dist.all_reduce(torch.ones(4))
        except CollectiveMismatchError as error:
            say(f"mistake {name}", str(error))

    with checked(timeout=30):
        right = torch.ones(1)
        dist.all_reduce(right)
        dist.barrier()
        say("checked and right", right.item())
        say("checked library", elasticjob.all_gather(torch.tensor([rank])).tolist())
        for name in ("order", "shape", "dtype", "op", "root"):
            provoke(name, wrong=rank == 2)
    dist.barrier()
    with checked(timeout=1.5):
        provoke("missing", wrong=rank == 2)
    say("unpatched", dist.all_reduce.__module__)


def hidden_store(rank: int) -> None:
    """A torch that does not expose the store of the world."""
    groups.find_store = lambda: None
    try:
        with checked(timeout=30):
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(2 if rank == 2 else 1))
    except CollectiveMismatchError as error:
        say("mistake hidden store", str(error))


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    for part in (reductions, gathers, unequal, sub_groups, point_to_point, mistakes, hidden_store):
        part(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
