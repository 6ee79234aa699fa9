"""How far a session's step has come on a device: evidence that the processor does not give.

A rank that waits for its device polls it, or NCCL's threads do. Its processor is never still, and its innermost call
may be the script's `loss.item()`, whether the device computes or waits for a rank that does not come. What has been
queued is no evidence either: it is the same on all ranks. So a worker tells what the device has completed: the number
of steps, and whether the present one is *pending*: it has queued collectives, and the device was not seen to be done
since.

`steps` is written by the main thread, and read by the thread that answers the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Steps:
    """The steps of this process's session."""

    def __init__(self) -> None:
        self.is_used = False
        self.done = 0
        self._before: int | None = None

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

    def tell(self, entered: int | None) -> dict[str, Any] | None:
        before = self._before
        if not self.is_used:
            return None
        return {"done": self.done, "pending": None not in (before, entered) and before != entered}


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
    """Whether the device has completed no step between two answers, though this rank has queued what it waits for."""
    if before is None or after is None or after.at <= before.at:
        return False  # a worker that does not answer may compute
    return before.is_pending and after.is_pending and before.done == after.done
