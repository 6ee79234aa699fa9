"""Threads that may be in torch's code when the process ends.

While the interpreter ends, a daemon thread that comes back from code without Python's lock does not get it any more.
Up to Python 3.13 the thread is ended there, and C++ ends the process by SIGABRT if one of its frames is in the way:
whatever the exit status of the script was. So threads that call torch are started here. Before the interpreter ends, it
waits for them. If one stays, the process ends at once, with the script's own status.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 1.0  # seconds for threads to end by themselves ...
LIMIT = 10.0  # ... and for those that have to be freed

_starting = threading.Lock()
_threads: list[threading.Thread] = []
_frees: list[weakref.WeakMethod[Callable[[], None]]] = []
_calling = threading.Lock()
_status: int | None = None


class Thread(threading.Thread):
    """A daemon thread that may call torch."""

    def __init__(self, target: Callable[..., None] | None = None, args: tuple[Any, ...] = (), name: str = "") -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)

    def start(self) -> None:
        with _starting:
            super().start()
            _threads[:] = [*(one for one in _threads if one.is_alive()), self]  # one of them may be who starts this one


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """A short call of torch, in a thread that does other things most of the time."""
    with _calling:
        yield


def free_at_end(method: Callable[[], None]) -> None:
    """Before the process ends, call this method if a thread does not end by itself: it may wait for other ranks."""
    with _starting:
        _frees[:] = [*(one for one in _frees if one() is not None), weakref.WeakMethod(method)]


def note_end(error: BaseException | None) -> None:
    """The script of this process has ended, with this exception or without one."""
    global _status  # noqa: PLW0603 - a process has one
    _status = find_status(error)


def find_end() -> int | None:
    """The status with which the script has ended, in the interpreter's end; None if nobody knows it."""
    status = _status
    if status is None and (error := getattr(sys, "last_value", None)) is not None:
        status = find_status(error)
    return status


def find_status(error: BaseException | None) -> int:
    """The exit status with which the interpreter ends; that of `subprocess` if a signal ends it. Pure."""
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    if not isinstance(error, SystemExit):
        return int(error is not None)
    code = error.code
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def wait(seconds: float) -> bool:
    """Whether all threads have ended within this time."""
    deadline = time.monotonic() + seconds
    for one in _find_living():
        one.join(max(0.0, deadline - time.monotonic()))
    return not _find_living()


def _find_living() -> list[threading.Thread]:
    return [one for one in _threads if one.is_alive() and one is not threading.current_thread()]


def _finish() -> None:
    _calling.acquire(timeout=PATIENCE)  # for ever
    if wait(PATIENCE):
        return
    for found in list(_frees):
        if (free := found()) is not None:
            with contextlib.suppress(Exception):
                free()
    if wait(LIMIT):
        return
    status = find_end()
    if status is not None:  # somebody else has started the script, and it has not failed: nobody knows how it ends
        _leave(status)


def _leave(status: int) -> None:
    """End the process without the interpreter's end."""
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        signal.raise_signal(-status)
    os._exit(status)


atexit.register(_finish)
