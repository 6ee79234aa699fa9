"""The script's side of the checkpoint signal: SIGUSR1 says that the world is about to change, save if you can.

Only a script that asked for it gets the signal, because SIGUSR1 ends a process that does not handle it. Asking
happens on first use here: the handler is installed, then the agent is told. Outside of an ElasticJob the handler
is installed all the same, so `kill -USR1` asks for a checkpoint anywhere.
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
    """Call `callback` in the main thread when a checkpoint is asked for."""
    _callbacks.append(callback)
    _install()


def checkpoint_requested() -> bool:
    """Whether a checkpoint was asked for and not made yet."""
    _install()
    return _requested


def clear_checkpoint_request() -> None:
    """The checkpoint is made: the agent may go on."""
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
