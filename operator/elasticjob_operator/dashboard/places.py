"""Places for what viewers do at a time, so that nobody takes the page from all others."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from aiohttp import web


class Places:
    """So many in all, and fewer of one viewer."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most, self._of_one = most, of_one
        self._taken: Counter[str] = Counter()  # by viewer

    @contextlib.contextmanager
    def take(self, request: web.Request) -> Iterator[None]:
        """A place for who asks. Raises HTTPServiceUnavailable if there is none."""
        who = viewer(request)
        if self._taken[who] >= self._of_one or self._taken.total() >= self._most:
            raise web.HTTPServiceUnavailable(text="Too many pages are open. Close some.")
        self._taken[who] += 1
        try:
            yield
        finally:
            self._taken[who] -= 1
            self._taken += Counter()  # forget who has none


def viewer(request: web.Request) -> str:
    """Who asks: the address that the proxy before us has appended, or else that of the connection."""
    return request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip() or request.remote or ""
