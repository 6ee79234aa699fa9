"""How the ranks of a world tell each other after which step they wait, once its end is announced.

They use the store of the world, with connections of their own: they are not in the way of torch's, and exist only then.
The rank that comes last finds the latest step, and all read it. See `machine` for what follows from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.errors import WorldLostError
from elasticjob.protocol import store, wire
from elasticjob.torchcompat import threads

_CONNECT_SECONDS = 30.0
_LEAST_PAUSE, _MOST_PAUSE = 0.001, 0.05  # seconds between two looks
_COUNT, _LAST = "count", "last"


class Promises(threads.Thread):
    """Tells the others this rank's step, and calls `on_last` with the latest one of all ranks.

    It gives up if the world is left, or `is_over`.
    """

    def __init__(self, place: Place, step: int, on_last: Callable[[int], None], is_over: Callable[[], bool]) -> None:
        super().__init__(name=f"elasticjob-promises-{place.generation}")
        self._place, self._step = place, step
        self._on_last = on_last
        self._is_left = threading.Event()
        self._is_over: Callable[[], bool] = lambda: self._is_left.is_set() or is_over()
        self._is_done = threading.Event()
        self._error = "a member was lost"
        self._is_known = False
        threads.free_at_end(self.leave)
        self.start()

    def leave(self) -> None:
        """The world is left: end soon."""
        self._is_left.set()

    def wait(self) -> None:
        """Wait until `on_last` has been called. Raises WorldLostError if that cannot be."""
        while not self._is_done.wait(1.0):
            if self._is_over():  # the thread may be in a call that does not return
                break
        if not self._is_known:
            raise WorldLostError(self._error)

    def run(self) -> None:
        try:
            where = wire.Store(self._place.address, self._place.port)
            inner = store.connect(where, self._is_over, time.monotonic() + _CONNECT_SECONDS)
            if inner is not None:
                prefixed: Any = dist.PrefixStore("elasticjob/promises", inner)  # type: ignore[attr-defined]
                last = exchange(prefixed, self._place.rank, self._place.world_size, self._step, self._is_over)
                if last is not None:
                    self._on_last(last)
                    self._is_known = True
        except (OSError, RuntimeError) as error:
            self._error = f"the last step could not be agreed on: {error}"
        finally:
            self._is_done.set()


def exchange(there: Any, rank: int, size: int, step: int, is_over: Callable[[], bool]) -> int | None:
    """The latest step that the ranks have promised in this store; None if `is_over` before all have."""
    there.set(str(rank), str(step))
    if there.add(_COUNT, 1) == size:
        promised = [int(there.get(str(one))) for one in range(size)]
        there.set(_LAST, str(max(promised)))
        return max(promised)
    pause = _LEAST_PAUSE
    while not there.check([_LAST]):
        if is_over():
            return None
        time.sleep(pause)
        pause = min(2 * pause, _MOST_PAUSE)
    return int(there.get(_LAST))
