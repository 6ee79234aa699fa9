"""The script's side of the checkpoint signal: SIGUSR1 announces a change of the world, so save now if possible.

The agent sends the signal only to scripts that support it, because SIGUSR1 terminates a process without a handler. The
first use of this module installs the handler and then registers with the agent. Outside of an ElasticJob the handler is
installed too, so `kill -USR1` requests a checkpoint anywhere.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from elasticjob.channel import control

_requested = False
_installed = False
_callbacks: list[Callable[[], None]] = []


def on_checkpoint(callback: Callable[[], None]) -> None:
    """Call `callback` in the main thread when a checkpoint is requested."""
    _callbacks.append(callback)
    _install()


def checkpoint_requested() -> bool:
    """Whether a checkpoint was requested and not saved yet."""
    _install()
    return _requested


def is_pending() -> bool:
    """Whether a checkpoint was requested and not saved yet. Unlike `checkpoint_requested`, it registers nothing."""
    return _requested


def on_request(callback: Callable[[], None]) -> None:
    """Call `callback` too if this process is asked, which it is only if its script registers for that."""
    _callbacks.append(callback)


def clear_checkpoint_request() -> None:
    """Mark the requested checkpoint as saved; the agent stops waiting for it."""
    global _requested  # noqa: PLW0603
    if not _requested:
        return
    _requested = False
    client = control.connect()
    if client is not None:
        client.send({"type": "saved"})


def _install() -> None:
    global _installed  # noqa: PLW0603
    if _installed or threading.current_thread() is not threading.main_thread():
        return
    _installed = True
    signal.signal(signal.SIGUSR1, _on_signal)
    client = control.connect()
    if client is not None:
        client.want(control.CHECKPOINT)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _requested  # noqa: PLW0603
    _requested = True
    for callback in _callbacks:
        callback()
