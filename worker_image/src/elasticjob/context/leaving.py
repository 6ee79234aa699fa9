"""What has to end before this process leaves a world in order: a save needs the process groups until it is complete.

And what can save without any, once there will be no further world.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Whole:
    """A sharded model and its optimizer, put together in host memory. Their own shards are of a world that is over."""

    model: Any
    optimizer: Any
    state: Mapping[str, Any]  # "model" and "optimizer", as they give it by `state_dict`


@dataclass(frozen=True)
class Alone:
    """What a process has in memory, in no world."""

    made: int  # so many steps
    step: int  # and all of the state after so many: a loss may have cost some
    whole: Whole | None = None  # of a sharded model
    lacks: str = ""  # why it has not all of any state


class Busy(Protocol):
    """Something that uses the process groups beside the script."""

    def finish(self, seconds: float | None) -> None:
        """Wait until it is done, at most so long. Never raises."""

    def save_alone(self, found: Alone) -> None:
        """Save the state of this process, in no world, or say what is lost with it. Never raises."""


_busy: weakref.WeakSet[Busy] = weakref.WeakSet()


def wait_for(one: Busy) -> None:
    """From now on, `leave` waits for this object, which it does not keep alive."""
    _busy.add(one)


def save_alone(found: Alone) -> bool:
    """There will be no further world for this process: save its state. False if there is nothing that could."""
    those = list(_busy)
    for one in those:
        one.save_alone(found)
    return bool(those)


def leave(seconds: float | None = None) -> None:
    """The process groups are about to be destroyed in order: wait for what still uses them."""
    for one in list(_busy):
        one.finish(seconds)
