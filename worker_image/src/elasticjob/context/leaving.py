"""What has to end before this process leaves a world in order: a save needs the process groups until it is complete.

And what can save without any, once there will be no further world.
"""

from __future__ import annotations

import weakref
from typing import Protocol


class Busy(Protocol):
    """Something that uses the process groups beside the script."""

    def finish(self, seconds: float | None) -> None:
        """Wait until it is done, at most so long. Never raises."""

    def save_alone(self, step: int) -> None:
        """Save this process's state, which is that after so many steps, in no world. Never raises."""


_busy: weakref.WeakSet[Busy] = weakref.WeakSet()


def wait_for(one: Busy) -> None:
    """From now on, `leave` waits for this object, which it does not keep alive."""
    _busy.add(one)


def save_alone(step: int) -> None:
    """There will be no further world for this process, which has all of the state in memory: save it."""
    for one in list(_busy):
        one.save_alone(step)


def leave(seconds: float | None = None) -> None:
    """The process groups are about to be destroyed in order: wait for what still uses them."""
    for one in list(_busy):
        one.finish(seconds)
