"""Requests to a store, a few at once, each in a thread that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

AT_ONCE: Final = 4  # requests, so that much of what they return is in memory

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Answer(Generic[T]):
    """What a call will have returned or raised."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._found: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(call,), name="elasticjob-archive-request", daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._found.put((call(), None))
        except BaseException as error:
            self._found.put((None, error))

    def take(self, pause: Callable[[], None], deadline: float | None = None) -> T:
        """Once. Raises TimeoutError at the deadline, and what `pause` and the call raise."""
        while True:
            try:
                found, error = self._found.get(timeout=0.02)
            except queue.Empty:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError from None
                pause()
                continue
            if error is not None:
                raise error
            return found  # type: ignore[return-value]


class Ahead(Generic[K, T]):
    """Calls with one key after the other, in this order, and makes the next ones meanwhile. For one thread."""

    def __init__(self, call: Callable[[K], T], keys: Sequence[K]) -> None:
        self._call, self._keys = call, list(dict.fromkeys(keys))
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._begun: dict[int, Answer[T]] = {}
        self._next = 0

    def begin(self, key: K) -> Answer[T]:
        """The answer for this key. Those before it that nobody has asked for are dropped."""
        place = self._places.get(key)
        if place is None or (place < self._next and place not in self._begun):
            return Answer(partial(self._call, key))  # it was asked for before
        self._begun = {one: answer for one, answer in self._begun.items() if one >= place}
        self._next = max(self._next, place)
        while len(self._begun) < AT_ONCE and self._next < len(self._keys):
            self._begun[self._next] = Answer(partial(self._call, self._keys[self._next]))
            self._next += 1
        return self._begun.pop(place)
