"""How far a session has come on a device: evidence that the processor does not give.

A rank that waits for its device polls it, or NCCL's threads do. Its processor is never still, and its innermost call
may be the script's `loss.item()`, whether the device computes or waits for a rank that does not come. What has been
queued is no evidence either: it is the same on all ranks. So a worker tells what the device has completed: the number
of steps and collectives, and whether more is *pending*: it has queued collectives, and the device has not completed
them.

torch knows that of each collective (`torchcompat.queues`). Where it does not tell, it is known of steps only: the
present one is pending from its first collective until the device was seen to be done. A rank that makes communicators
has queued nothing yet, but gets no further without the others.

The fields of `steps` are written by the main thread, and read by the thread that answers the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Steps:
    """The steps of this process's session."""

    def __init__(self) -> None:
        self.is_used = False  # there is a session on a device
        self.done = 0
        self._before: int | None = None
        self._is_connecting = False

    def begin(self, entered: int | None) -> None:
        """A step begins, or its next micro-batch. `entered`: collectives so far; None if none is queued on a device."""
        if entered is not None and self._before is None:
            self.is_used, self._before = True, entered

    def end(self) -> None:
        """The device has completed the step."""
        self._before = None
        self.done += 1

    def drop(self) -> None:
        """The step is broken."""
        self._before = None

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """In this block, this rank makes communicators together with others."""
        self._is_connecting = True
        try:
            yield
        finally:
            self._is_connecting = False

    def tell(self, entered: int | None, queues: tuple[int, bool] | None = None) -> dict[str, Any] | None:
        """`entered`: collectives so far; `queues`: those that the device has completed, and whether there are more."""
        if not self.is_used:
            return None
        before = self._before
        completed, is_pending = queues or (0, None not in (before, entered) and before != entered)
        return {"done": self.done + completed, "pending": is_pending or self._is_connecting}


steps = Steps()


@dataclass(frozen=True)
class Told:
    """What a worker told, and when (seconds of a monotonic clock)."""

    at: float
    done: int = 0
    is_pending: bool = False


def read(told: Any, now: float) -> Told | None:
    """What a worker has answered; None if it told nothing."""
    if not isinstance(told, Mapping) or not isinstance(done := told.get("done"), int):
        return None
    return Told(now, done, told.get("pending") is True)


def has_stayed(before: Told | None, after: Told | None) -> bool:
    """Whether the device has completed nothing between two answers, though this rank has queued what it waits for."""
    if before is None or after is None or after.at <= before.at:
        return False  # a worker that does not answer may compute
    return before.is_pending and after.is_pending and before.done == after.done
