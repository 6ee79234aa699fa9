"""Who comes to a meeting of all ranks, and who never will, without processes."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.protocol import store
from elasticjob.sessions import meetings
from elasticjob.sessions.meetings import OVER, SKIPPED, Position

MINE = Position(4, {"world": 9})


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        pytest.param(Position(4, {"world": 9}), "", id="it computes, or is there, or evaluates"),
        pytest.param(Position(3, {"world": 8}), "", id="it is slower"),
        pytest.param(Position(3, {"world": 10}), "", id="something old"),
        pytest.param(Position(4, {"world": 10}), "collective of block 4", id="it reduces gradients"),
        pytest.param(Position(5, {"world": 9}), "has begun block 5", id="it goes on"),
        pytest.param(Position(4, {"another": 99}), "", id="groups of others say nothing"),
        pytest.param(Position(4), "", id="torch does not count"),
    ],
)
def test_whether_another_rank_may_still_come(theirs: Position, found: str) -> None:
    said = meetings.judge(MINE, theirs)
    assert bool(said) == bool(found)
    assert found in said


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ([(SKIPPED, 4, 9), (SKIPPED, 4, 9)], ""),
        ([(SKIPPED, 4, 9), (OVER, 3, 9)], "rank 1 has ended its training after block 3"),
        ([(OVER, 4, 9), (SKIPPED, 4, 9)], "rank 1 has left block 4 without a step"),
        ([(SKIPPED, 4, 9), (SKIPPED, 4, 10)], "rank 1 has entered 10 collectives in this world, and this one 9"),
    ],
)
def test_ranks_that_have_met_compare_where_they_are(waits: list[tuple[str, int, int]], found: str) -> None:
    rows = [Position(blocks, {"world": entered}).as_row(reason) for reason, blocks, entered in waits]
    assert meetings.judge_rows(rows, 0) == found


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 2), (4, 9), (16, 17), (0, 18), (99, 300)])
def test_each_other_rank_is_looked_at_in_its_turn(rank: int, size: int) -> None:
    seen: list[int] = []
    while len(seen) < size - 1:
        some = meetings.choose(rank, size, len(seen))
        assert 0 < len(some) <= 16 and len(set(some)) == len(some)
        seen += some
    assert set(seen[: size - 1]) == set(range(size)) - {rank}


@pytest.mark.timeout(60)
def test_a_meeting_that_another_rank_ends_is_not_left_meanwhile() -> None:
    """Who leaves it enters the next world, whose groups would be freed in place of this one's."""
    held, where = store.listen("127.0.0.1")
    begun, left, freed = threading.Event(), threading.Event(), threading.Event()

    def free() -> None:
        begun.set()
        assert not left.wait(0.3)
        freed.set()

    place = Place(generation=1, rank=0, world_size=2, address="127.0.0.1", port=where.port)
    there: Any = dist.PrefixStore("elasticjob/meetings", held)  # type: ignore[attr-defined]
    there.set("1", json.dumps({"blocks": 7, "entered": {}}))
    meeting = meetings.Meetings(place, dict, free, lambda: False)
    with meeting.waiting():
        assert begun.wait(30)
    left.set()
    meeting.leave()
    meeting.join(30)
    assert freed.is_set() and meeting.other == "rank 1 has begun block 7"
