"""Three ranks exchange a state: what is sent, what arrives, and what stays unchanged. With `device` as its argument,
the state travels like that of a device, over `worker.fake_nccl`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from elasticjob.collectives import messages, skeletons
from elasticjob.errors import WorldLostError
from elasticjob.sessions import transfer
from worker import fake_nccl
from worker.programs.saying import say
from worker.programs.unpickling import forbid_unpickling

forbid_unpickling()
if sys.argv[1] == "device":
    fake_nccl.put_state_on_device()
dist.init_process_group(fake_nccl.NAME if sys.argv[1] == "device" else "gloo")
FLAGS = dist.new_group(backend="gloo")
say("kind", sys.argv[1])
RANK, SOURCE = dist.get_rank(), 1
sent: list[int] = []
broadcast, isend = dist.broadcast, dist.isend


def count(send: Callable[..., Any]) -> Callable[..., Any]:
    def counting(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return send(tensor, *args, **more)

    return counting


@contextlib.contextmanager
def counted() -> Iterator[None]:
    sent.clear()
    with mock.patch.object(dist, "broadcast", count(broadcast)), mock.patch.object(dist, "isend", count(isend)):
        yield


class Damaged:
    """A message on its way, of which a byte arrives as another one."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        fake_nccl.synchronize()
        if self._tensor.numel() > 1_000_000:
            self._tensor[1234] ^= 1


@contextlib.contextmanager
def damaged() -> Iterator[None]:
    """What comes to rank 0 in this block."""
    irecv = dist.irecv

    def receive(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
        return Damaged(irecv(tensor, *args, **more), tensor)

    def receive_from_all(tensor: torch.Tensor, *args: Any, **more: Any) -> None:
        Damaged(broadcast(tensor, *args, **more), tensor).wait()

    if RANK:
        yield
        return
    with mock.patch.object(dist, "irecv", receive), mock.patch.object(dist, "broadcast", receive_from_all):
        yield


def make_state(seed: int, steps: int) -> dict[str, Any]:
    """Large frozen weights that all have, trained ones, an optimizer's state after the first step, plain data."""
    torch.manual_seed(seed)
    trained = {"a": torch.randn(7, 3), "b": torch.randn(5).half(), "t": torch.randn(4, 6).t(), "n": torch.zeros(0)}
    state = {0: {"step": torch.tensor(float(steps)), "m": torch.randn(7, 3)}} if steps else {}
    frozen = torch.arange(2_000_000, dtype=torch.float32)
    return {"frozen": {"w": frozen}, "model": trained, "optimizer": {"state": state, "lr": 0.1}, "position": steps}


def exchange(seed: int, steps: int, keep: bool) -> None:
    mine = make_state(seed, steps)
    before = [tensor.clone() for tensor in mine["model"].values()]
    inventory = transfer.take_inventory(mine)
    with counted():
        got = transfer.Exchange(RANK, SOURCE, FLAGS, torch.device("cpu"), keep).run(inventory)
    wanted = make_state(1, 3)
    now = wanted if got is None else got
    pairs = [(wanted["model"][name], now["model"][name]) for name in wanted["model"]]
    pairs += [(wanted["optimizer"]["state"][0][name], now["optimizer"]["state"][0][name]) for name in ("step", "m")]
    say(f"{seed} equal", all(torch.equal(left, right) for left, right in pairs) and now["position"] == 3)
    say(f"{seed} bytes", sum(size for size in sent if size > 1_000_000))
    mine_now = list(mine["model"].values())
    say(f"{seed} untouched", all(torch.equal(old, new) for old, new in zip(before, mine_now, strict=True)))
    say(f"{seed} in place", got is None or got["model"]["a"].data_ptr() == mine["model"]["a"].data_ptr())


# A newcomer and one that is behind; rank 1 sends.
exchange(seed=RANK, steps=(0, 3, 2)[RANK], keep=RANK == 2)
# All have the same: the digests say so.
inventory = transfer.take_inventory(make_state(1, 3))
say("same digest", len(set(messages.all_gather_json(transfer.digest_inventory(inventory), FLAGS))) == 1)
with counted():
    transfer.Exchange(RANK, SOURCE, FLAGS, torch.device("cpu"), True).run(inventory)
say("nothing is sent", sum(size for size in sent if size > 1_000) == 0)
say("chunks", [len(section.digests) for section in inventory.values()])
assert skeletons.CHUNK_BYTES < 8_000_000
# A rank without anything gets it from the two others, half each.
large = {str(index): torch.full((skeletons.CHUNK_BYTES // 4,), float(1 + index)) for index in range(4)}
empty = {name: torch.zeros_like(tensor) for name, tensor in large.items()}
inventory = transfer.take_inventory({"model": empty if RANK == 0 else large})
with counted():
    transfer.Exchange(RANK, SOURCE, FLAGS, torch.device("cpu"), RANK != 0).run(inventory)
say("shared", sum(size for size in sent if size >= skeletons.CHUNK_BYTES) // skeletons.CHUNK_BYTES)
say("complete", all(torch.equal(tensor, large[name]) for name, tensor in (empty if RANK == 0 else large).items()))
# The same, but a byte of what comes to it is another one.
empty = {name: torch.zeros_like(tensor) for name, tensor in large.items()}
inventory = transfer.take_inventory({"model": empty if RANK == 0 else large})
with damaged():
    try:
        transfer.Exchange(RANK, SOURCE, FLAGS, torch.device("cpu"), RANK != 0).run(inventory)
        say("damaged", "nobody has noticed")
    except WorldLostError as error:
        say("damaged", str(error))
dist.barrier()
dist.destroy_process_group()
