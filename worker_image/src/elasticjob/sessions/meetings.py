"""Where all ranks of a world have to come to: the end of training, and that of a step which no optimizer has made.

A step of a session costs no message, so nobody knows of another rank's steps. A rank whose script skips one, after an
exception that it catches, or which stops earlier than the others, would wait here for ever, for ranks that wait for it
in a collective; or it would take part in the next step of the others with the gradients of another one. So it waits,
and while it does, all ranks tell where they are: through the store of the world, in a thread that looks once a second
whether anybody wants to know. A rank that has entered a collective which the waiting one has not, or begun a later
step, will never come. That is evidence; the time that a rank takes is none.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.protocol import store, wire
from elasticjob.torchcompat import threads

_LOOK_SECONDS = 1.0  # between two looks whether anybody waits ...
_PAUSE_SECONDS = 0.2  # ... and while somebody does
_PATIENCE_SECONDS = 0.5  # nearly all meetings are over by then
_CONNECT_SECONDS = 30.0
_MOST_AT_ONCE = 16  # ranks that one looks at: in a large world, nearly all may wait for one that saves
_WAITING = "waiting"  # the number of ranks that do

SKIPPED, OVER = "skipped", "over"  # why a rank waits
_REASONS = (SKIPPED, OVER)


@dataclass(frozen=True)
class Position:
    """How far the script of a rank is in this world. It only grows, so one that is read late does no harm."""

    blocks: int  # of `step()`, that it has begun
    entered: Mapping[str, int] = field(default_factory=dict)  # collectives, by group

    def as_row(self, waits: str) -> list[int]:
        """Equally many integers on each rank."""
        return [_REASONS.index(waits), self.blocks, sum(self.entered.values())]


def choose(rank: int, size: int, looked: int) -> list[int]:
    """The ranks that this one looks at next, after so many of them: each other rank in its turn. Pure."""
    others = size - 1
    return [(rank + 1 + (looked + index) % others) % size for index in range(min(others, _MOST_AT_ONCE))]


def judge(mine: Position, theirs: Position) -> str:
    """What the other rank does that keeps it from coming to my meeting; "" if it may still come. Pure."""
    if theirs.blocks > mine.blocks:
        return f"has begun block {theirs.blocks}"
    if theirs.blocks == mine.blocks and any(
        count > mine.entered[name] for name, count in theirs.entered.items() if name in mine.entered
    ):
        return f"waits for this one in a collective of block {theirs.blocks}"
    return ""


def judge_rows(rows: list[list[int]], rank: int) -> str:
    """What the first rank does that differs from this one, of ranks that have all met; "" if none does. Pure."""
    mine = rows[rank]
    for other, (reason, blocks, entered) in enumerate(rows):
        if [reason, blocks] != mine[:2] and _REASONS[reason] == OVER:
            return f"rank {other} has ended its training after block {blocks}"
        if [reason, blocks] != mine[:2]:
            return f"rank {other} has left block {blocks} without a step"
        if entered != mine[2]:
            return f"rank {other} has entered {entered} collectives in this world, and this one {mine[2]}"
    return ""


def explain(waits: str, blocks: int, rank: int, other: str, reason: str) -> str:
    """The sentence for the script of this rank. `other`: what another one does; `reason`: of a skipped step."""
    if waits == OVER:
        return (
            f"rank {rank} has ended its training after block {blocks} of `with session.step()` in this world, and"
            f" {other}. All ranks have to make the same number of steps: stop on all of them together, for example"
            " after an all_reduce of the metric in session.interruptible(), and give each rank equally many batches."
            " A loop that counts its epochs or steps itself begins anew in a process that joins: end it by"
            " session.committed, as in `while session.committed < last`."
        )
    return (
        f"rank {rank} has left block {blocks} of `with session.step()` in this world without a step ({reason}),"
        f" and {other}. Skip a step on all ranks or on none, or each trains another model: leave bad samples out in"
        " the dataset or its collate_fn, or let the ranks agree on it, with an all_reduce of a flag in the block."
    )


class Meetings(threads.Thread):
    """Those of one world. The script's thread meets; this one tells where it is, and finds out about the others."""

    def __init__(
        self,
        place: Place,
        count: Callable[[], Mapping[str, int]],
        free: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        """`count`: the collectives entered, by group; `free` ends the wait of the script's thread for the others."""
        super().__init__(name=f"elasticjob-meetings-{place.generation}")
        self.blocks = 0
        self.other = ""  # what another rank does, as soon as it is known that it will not come
        self._place, self._count, self._free = place, count, free
        self._is_left = threading.Event()
        self._is_over: Callable[[], bool] = lambda: self._is_left.is_set() or is_over()
        self._before = 0  # collectives, before this step ...
        self._least: int | None = None  # ... and in a step, at least
        self._mine: Position | None = None  # in a meeting
        self._leaving = threading.Lock()  # nobody leaves a meeting, and then the world, while it is ended
        self._since = 0.0
        self._says = False  # to the others, that it waits
        self._looked = 0  # at how many of them, one after the other
        threads.free_at_end(self.leave)
        self.start()

    def begin_block(self, begins_step: bool) -> None:
        self.blocks += 1
        if begins_step:
            self._before = sum(self._count().values())

    def has_met_less(self) -> bool:
        """Whether this rank has entered fewer collectives in this step than in each of this world so far.

        Then all ranks have, or this one has left something out.
        """
        made, least = sum(self._count().values()) - self._before, self._least
        self._least = made if least is None else min(made, least)
        return least is not None and made < least

    def leave_out(self) -> None:
        """The last collective of this step was none of the script's: others have fewer."""
        self._before += 1

    def leave(self) -> None:
        """The world is left: end soon."""
        self._is_left.set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Position]:
        """The script's thread waits for the others in this block, unless they are known not to come."""
        self._since = time.monotonic()
        mine = self._mine = Position(self.blocks, self._count())
        try:
            yield mine
        finally:
            with self._leaving:
                self._mine = None

    def run(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the world is over, or will soon be
            self._is_left.wait(_LOOK_SECONDS)  # many worlds have no meeting that lasts
            where = wire.Store(self._place.address, self._place.port)
            inner = store.connect(where, self._is_over, time.monotonic() + _CONNECT_SECONDS)
            if inner is not None:
                there: Any = dist.PrefixStore("elasticjob/meetings", inner)  # type: ignore[attr-defined]
                while not self._is_over():
                    self._look(there)

    def _look(self, there: Any) -> None:
        mine = self._mine
        waits = mine is not None and time.monotonic() - self._since >= _PATIENCE_SECONDS
        number = there.add(_WAITING, int(waits) - int(self._says))
        self._says = waits
        if number == 0:
            self._is_left.wait(_LOOK_SECONDS)
            return
        position = mine or Position(self.blocks, self._count())
        there.set(str(self._place.rank), json.dumps(asdict(position)))
        if waits and mine is not None:
            self._look_for_others(there, mine)
        self._is_left.wait(_PAUSE_SECONDS)

    def _look_for_others(self, there: Any, mine: Position) -> None:
        others = choose(self._place.rank, self._place.world_size, self._looked)
        self._looked += len(others)
        for rank in others:
            if not there.check([str(rank)]):
                continue
            found = judge(mine, Position(**json.loads(there.get(str(rank)))))
            with self._leaving:
                if found and not self.other and self._mine is mine:
                    self.other = f"rank {rank} {found}"
                    self._free()
