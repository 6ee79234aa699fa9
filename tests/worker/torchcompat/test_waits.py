"""Waiting for a collective of gloo's that can be given up, and hearing of errors that a script catches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from elasticjob.errors import WorldLostError
from elasticjob.torchcompat import probe, waits

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two ranks of a group, in this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = HashStore()
    groups: list[Any] = [None, None]

    def make(rank: int) -> None:
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=40))

    threads = [threading.Thread(target=make, args=[rank]) for rank in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return groups


@pytest.fixture
def world() -> Iterator[waits.World]:
    world = waits.World()
    waits.wait_for(world)
    yield world
    waits.wait_for(None)


def broadcast(group: Any, tensor: torch.Tensor) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = 1
    return group.broadcast([tensor], options)


def exchange(group: Any, tensor: torch.Tensor) -> Any:
    return group.recv([tensor], 1, 0) if group.rank() == 0 else group.send([tensor], 0, 0)


@pytest.mark.parametrize("begin", [broadcast, exchange])
def test_a_wait_is_given_up_when_the_world_is_over(
    pair: list[Any], world: waits.World, begin: Callable[[Any, torch.Tensor], Any]
) -> None:
    mine, theirs = torch.zeros(4), torch.ones(4)
    work = begin(pair[0], mine)
    threading.Timer(0.2, world.is_over.set).start()
    with pytest.raises(WorldLostError):
        work.wait()
    assert world.is_stuck
    waits.wait_for(None)
    begin(pair[1], theirs).wait()  # gloo itself still waits, and the groups end only after that


@pytest.mark.parametrize("begin", [broadcast, exchange])
def test_a_wait_in_a_world_that_holds_lasts_as_long_as_it_must(
    pair: list[Any], world: waits.World, begin: Callable[[Any, torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_LOOK_SECONDS", 0.05)
    mine, theirs = torch.zeros(4), torch.ones(4)
    sent: list[Any] = []
    sender = threading.Timer(0.5, lambda: sent.append(begin(pair[1], theirs)))
    sender.start()
    begin(pair[0], mine).wait()
    assert torch.equal(mine, theirs) and not world.is_stuck
    sender.join(30)
    sent[0].wait()


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def note(self, error: Exception) -> None:
        self.heard.append(str(error))

    def look(self) -> None:
        pass


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("names", [(), (waits._WAIT,)], ids=["there", "gone"])
def test_the_error_of_a_backward_pass_is_told(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    find = probe.find
    monkeypatch.setattr(probe, "find", lambda path: None if path in names else find(path))
    monkeypatch.setattr(waits, "_is_installed", False)
    monkeypatch.setattr(torch.autograd, "backward", fail)
    monkeypatch.setattr(find(waits._CLASS), "wait", find(waits._WAIT))
    listener = Listener()
    waits.tell(listener.note, listener.look)
    with pytest.raises(RuntimeError):
        torch.ones(1, requires_grad=True).backward()  # type: ignore[no-untyped-call]
    assert listener.heard == ["Connection closed by peer"]
