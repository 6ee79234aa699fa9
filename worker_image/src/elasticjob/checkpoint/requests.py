"""The agent's request for a checkpoint, as a public interface for scripts."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.channel import signals


def on_signal(callback: Callable[[], None]) -> None:
    """Call `callback` when the agent announces a change of the world: for scripts with their own checkpoints.

    It is called in the main thread, between two Python instructions, at a different time on each rank. So it should
    only record the request; the loop should save at a point that all ranks agree on and then call `clear()`, which the
    agent waits for.
    """
    signals.on_checkpoint(callback)


def requested() -> bool:
    """Whether the agent requested a checkpoint that is not saved yet. Listens from the first call on."""
    return signals.checkpoint_requested()


def clear() -> None:
    """Report that a checkpoint is saved: to the agent, if it waits for one, and for the age of the last one."""
    from elasticjob.channel import progress
    from elasticjob.protocol.steps import FILE

    progress.saves.note(FILE)
    signals.clear_checkpoint_request()
