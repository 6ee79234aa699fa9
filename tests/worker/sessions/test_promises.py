"""How the ranks of a world learn after which step they end it."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.errors import WorldLostError
from elasticjob.protocol import store
from elasticjob.sessions import promises

pytestmark = pytest.mark.timeout(60)


def test_all_ranks_learn_the_latest_step() -> None:
    held, where = store.listen("127.0.0.1")
    found: dict[int, int] = {}
    ranks = []
    for rank, step in enumerate((4, 7, 5)):
        place = Place(2, rank, 3, where.address, where.port)
        ranks.append(promises.Promises(place, step, lambda last, rank=rank: found.update({rank: last}), lambda: False))  # type: ignore[misc]
    for one in ranks:
        one.wait()
    assert found == {0: 7, 1: 7, 2: 7}
    del held


def test_the_others_are_waited_for_until_the_world_is_lost() -> None:
    held, where = store.listen("127.0.0.1")
    lost = threading.Event()
    told: list[int] = []
    first = promises.Promises(Place(2, 0, 2, where.address, where.port), 4, told.append, lost.is_set)
    first.join(0.2)
    assert first.is_alive()
    lost.set()
    with pytest.raises(WorldLostError, match="a member was lost"):
        first.wait()
    first.join()
    assert told == []
    del held


def test_a_store_that_is_gone_is_a_lost_world() -> None:
    held, where = store.listen("127.0.0.1")
    del held
    lost = threading.Event()
    rank = promises.Promises(Place(2, 0, 2, where.address, where.port), 4, lambda _: None, lost.is_set)
    threading.Timer(0.2, lost.set).start()
    with pytest.raises(WorldLostError):
        rank.wait()


def test_a_world_that_is_over_is_not_waited_for() -> None:
    there = dist.HashStore()  # type: ignore[attr-defined]
    assert promises.exchange(there, 0, 2, 4, lambda: True) is None
    assert promises.exchange(there, 1, 2, 3, lambda: True) == 4, "it is the last one, and waits for nobody"
