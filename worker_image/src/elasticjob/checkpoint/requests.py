"""The agent's wish for a checkpoint, as a script sees it."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.channel import signals


def on_signal(callback: Callable[[], None]) -> None:
    """Call `callback` when the agent announces a change of the world: for scripts with a checkpoint of their own.

    It is called in the main thread, between two instructions of Python, at another moment on each rank. So it should
    note the wish, and the loop should save at a point that all ranks agree on, then call `clear()`: the agent waits for
    that.
    """
    signals.on_checkpoint(callback)


def requested() -> bool:
    """Whether the agent asked for a checkpoint that is not made yet. Listens from the first call on."""
    return signals.checkpoint_requested()


def clear() -> None:
    """Tell the agent that the checkpoint is made."""
    signals.clear_checkpoint_request()
