"""What has to end before this process leaves a world in order: a save needs the process groups until it is complete."""

from __future__ import annotations

import weakref
from typing import Protocol


class Busy(Protocol):
    """Something that uses the process groups beside the script."""

    def finish(self, seconds: float | None) -> None:
        """Wait until it is done, at most so long. Never raises."""


_busy: weakref.WeakSet[Busy] = weakref.WeakSet()


def wait_for(one: Busy) -> None:
    """From now on, `leave` waits for this object, which it does not keep alive."""
    _busy.add(one)


def leave(seconds: float | None = None) -> None:
    """The process groups are about to be destroyed in order: wait for what still uses them."""
    for one in list(_busy):
        one.finish(seconds)
