"""Interrupts the script's own code in the main thread when its world is lost.

Between two collectives a rank does not notice that a member was lost and would compute to the end of the step in vain.
A signal reaches it there, also in a sleep or a read, and raises an ordinary exception at the current line.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from elasticjob.errors import ElasticJobError, WorldLostError
from elasticjob.torchcompat import failures

_SIGNAL = signal.SIGURG  # ignored by default, so a late signal is harmless
# By these a script is asked to save, or to end.
_ASKING = tuple(map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)))
_EVERY = 0.05  # seconds between two attempts: the thread may be in code that must not be interrupted
_OWN_CODE = (str(Path(__file__).parents[1]), contextlib.__file__)  # our `with` blocks cannot catch what is raised here


class Interrupter:
    """Raises WorldLostError in the main thread if `is_wanted()`, once for each time that `allowed` is set.

    Only our own code may set `allowed`, and it must return to the script without calling other code first.

    It sends no signal if the script handles the signal itself, or if it was created outside of the main thread.
    """

    def __init__(self, is_wanted: Callable[[], bool], free: Callable[[], None] = lambda: None) -> None:
        """`free` is called before each attempt: the thread may have entered another call that does not return."""
        self.allowed = False
        self._handlers: list[Any] = []
        self._is_wanted = is_wanted
        self._free = free
        self._main = threading.main_thread()
        if threading.current_thread() is not self._main or signal.getsignal(_SIGNAL) != signal.SIG_DFL:
            return
        signal.signal(_SIGNAL, self._handle)
        signal.siginterrupt(_SIGNAL, False)  # libraries must not get EINTR

    def begin(self) -> None:
        """The script's own code begins. A handler of a signal may take itself away when it runs, so they are noted."""
        self._handlers = [_signal.getsignal(one) for one in _ASKING]  # what `signal` calls, without its enumerations
        self.allowed = True

    def interrupt(self) -> None:
        """Thread-safe. Returns at once; signals the main thread repeatedly while `is_wanted()`, whenever `allowed` is
        set.
        """
        threading.Thread(target=self._insist, name="elasticjob-interrupt", daemon=True).start()

    def _insist(self) -> None:
        can_signal = signal.getsignal(_SIGNAL) == self._handle
        while self._is_wanted() and self._main.ident is not None:
            self._free()
            if can_signal and self.allowed:
                signal.pthread_kill(self._main.ident, _SIGNAL)
            time.sleep(_EVERY)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if self.allowed and frame is not None and not _is_own(frame) and self._is_wanted():
            if self._has_handler(traceback.walk_stack(frame)):
                return  # of another signal, which is sent once
            self.allowed = False
            raise WorldLostError("a member was lost")

    def find_meant_by_signal(self, error: BaseException) -> BaseException | None:
        """What a handler of a signal wants the script to end with, if that is why a block has ended: a signal is sent
        once.

        That is what the handler has raised, or the exit that the script made of it. What a loss does to a handler is
        not meant by the signal.
        """
        found: list[BaseException] = []
        for one in failures.chain(error, also_hidden=True):
            if isinstance(one, ElasticJobError) or failures.is_broken_communication(one):
                continue
            found.append(one)
            if self._has_handler(traceback.walk_tb(one.__traceback__)):
                return next((exit_ for exit_ in found if isinstance(exit_, SystemExit)), one)
        return None

    def _has_handler(self, frames: Iterable[tuple[FrameType, int]]) -> bool:
        """Whether one of them is of a handler of the script. By its code: whoever asks a frame that goes on for its
        variables keeps them until it ends, up to Python 3.12.
        """
        now = (one for number in signal.valid_signals() if (one := signal.getsignal(number)) != self._handle)
        codes = {_find_code(one) for one in (*self._handlers, *now)} - {None}
        return any(frame.f_code in codes for frame, _ in frames)


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN_CODE)


def _find_code(handler: Any) -> object:
    """That of a function, of a method, or of an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") or not callable(handler) else type(handler).__call__
    return getattr(function, "__code__", None)
