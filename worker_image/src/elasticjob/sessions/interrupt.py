"""Takes the main thread out of the script's own code when its world is gone.

Between two collectives nothing tells a rank of a loss: it would compute to the end of the step for nothing. A signal
reaches it there, also in a sleep or a read. What is raised is an ordinary exception at the line that runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from elasticjob.errors import WorldLostError

_SIGNAL = signal.SIGURG  # ignored by default, so that a late one does no harm
_EVERY = 0.05  # seconds between two attempts: the thread may be where it must not be interrupted
_OWN_CODE = (str(Path(__file__).parents[1]), contextlib.__file__)  # a `with` of ours could not catch it in there


class Interrupter:
    """Raises WorldLostError in the main thread, once for each time that it is allowed, if `is_wanted` says so.

    `allowed` has to be set by code of ours that then returns to the script without calling code of others.

    It stays away where the script has a handler of its own for the signal, or was made in another thread.
    """

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self.allowed = False
        self._is_wanted = is_wanted
        self._main = threading.main_thread()
        if threading.current_thread() is not self._main or signal.getsignal(_SIGNAL) != signal.SIG_DFL:
            return
        signal.signal(_SIGNAL, self._handle)
        signal.siginterrupt(_SIGNAL, False)  # libraries are not to see EINTR

    def interrupt(self) -> None:
        """From any thread: try for as long as it is wanted, whenever it is allowed. Returns at once."""
        if signal.getsignal(_SIGNAL) == self._handle:
            threading.Thread(target=self._insist, name="elasticjob-interrupt", daemon=True).start()

    def _insist(self) -> None:
        while self._is_wanted() and self._main.ident is not None:
            if self.allowed:
                signal.pthread_kill(self._main.ident, _SIGNAL)
            time.sleep(_EVERY)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if self.allowed and frame is not None and not _is_own(frame) and self._is_wanted():
            self.allowed = False
            raise WorldLostError("a member was lost")


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN_CODE)
