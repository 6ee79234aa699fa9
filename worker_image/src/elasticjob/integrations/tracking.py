"""What the adapters of experiment trackers share: one run for all attempts of a job, written beside the training.

Only rank 0 writes, whichever process that is in the present world. A thread does the writing, so a server that is slow
or away delays neither a step nor the end of the script: what waits for it is bounded, and the rest is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Protocol

from elasticjob import env
from elasticjob.context.context import current

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1000  # calls of `log` that wait for the server
_BATCH: Final = 200
_AGAIN, _SOON = 5.0, 0.2  # seconds until the next try, also when the script is about to end
_MOST_TEXTS: Final = 20


@dataclass(frozen=True)
class Point:
    """What was logged at once."""

    step: int
    time: float  # in seconds since 1970
    values: dict[str, float]


class Backend(Protocol):
    """A tracker, called by one thread. A call that raises is repeated later."""

    def open(self) -> None:
        """Begin the run of this job, or continue it."""

    def write(self, points: Sequence[Point]) -> None: ...

    def end(self, failed: bool) -> None: ...


class Tracker:
    """Logs to the one run of this job: `with start_run(...) as tracker: tracker.log(step, loss=loss.item())`.

    Create it on all ranks. Each change of the world is logged as the metrics `elasticjob/generation` and
    `elasticjob/world_size`. The run ends with the block: as failed, if it raises. A process that is ended because the
    world changes leaves the run open, and the next attempt continues it.
    """

    def __init__(self, backend: Backend, patience: float = 5.0) -> None:
        """`patience`: for how many seconds the end of the script waits for what is not written yet."""
        self._backend, self._patience = backend, patience
        self._waiting: queue.Queue[Point | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._generation: str | None = None
        self._failed = False
        self._ending = threading.Event()
        self._told: set[str] = set()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):  # but not after sys.exit() in a handler of SIGTERM
            self.finish(failed=error is not None)

    def log(self, step: int, **values: float) -> None:
        """Log these numbers of this step. It does not block; on ranks other than 0 it does nothing."""
        if os.environ.get("RANK", "0") != "0":
            return
        found = {name: float(value) for name, value in values.items()}
        generation = os.environ.get(env.GENERATION, "")
        if generation != self._generation:
            self._generation, place = generation, current()
            found |= {"elasticjob/generation": place.generation, "elasticjob/world_size": place.world_size}
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="elasticjob-tracker", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(Point(int(step), time.time(), found))
        except queue.Full:
            self._tell(f"{MAX_WAITING} calls of log() wait for the tracker; further ones are left out")

    def finish(self, failed: bool = False) -> None:
        """End the run, once all is written or the patience is over."""
        if self._thread is None:
            return
        self._failed = failed
        self._ending.set()
        deadline = time.monotonic() + self._patience
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=self._patience)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._tell(f"the tracker did not answer within {self._patience:g} s, so the end of the run is not logged")

    def _write_all(self) -> None:
        self._insist(self._backend.open)
        over = False
        while not over:
            found = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(found) < _BATCH:
                    found.append(self._waiting.get_nowait())
            points = [point for point in found if point is not None]
            over = len(points) < len(found)
            if points:
                self._insist(partial(self._backend.write, points))
        self._insist(lambda: self._backend.end(self._failed))

    def _insist(self, action: Callable[[], None]) -> None:
        """Try until it succeeds. The process may end before: this thread does not hold it up."""
        while True:
            try:
                action()
                return
            except Exception as error:
                self._tell(f"the tracker cannot be written ({error}); trying again while the training goes on")
            if self._ending.wait(_AGAIN):
                time.sleep(_SOON)

    def _tell(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MOST_TEXTS:
            self._told.add(text)
            logger.warning("%s.", text)
