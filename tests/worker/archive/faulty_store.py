"""A store as fsspec shows one, in memory, that is as bad as stores can be: one request after the other.

What is put is there at once under its name, as every store promises that is in use. Everything else may go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class DiedError(BaseException):
    """The process is no more."""


@dataclass
class Contents:
    """What is in the store, whoever asks."""

    objects: dict[str, bytes] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)  # by name: the request that made it
    requests: int = 0
    put_bytes: int = 0
    after_delete: Callable[[], None] = lambda: None


class FaultyFiles:
    """What `fsspec.filesystem` returns: the connection of one process."""

    def __init__(
        self,
        contents: Contents,
        rng: random.Random,
        *,
        failing: float = 0.0,
        halves: float = 0.0,
        forgets: int = 0,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`failing`: the share of requests that fail, done or not. `halves`: of reads that return a part.

        `forgets`: a listing may lack what was made in the last so many requests. `before` is called before each.
        """
        self.contents, self._rng = contents, rng
        self.failing, self.halves, self.forgets, self.before = failing, halves, forgets, before

    def _strip_protocol(self, url: str) -> str:
        return url.partition("://")[2]

    def invalidate_cache(self) -> None:
        pass

    def _request(self) -> bool:
        """Begin a request. Returns whether it fails after it was done."""
        self.before()
        self.contents.requests += 1
        fate = self._rng.random()
        if fate < self.failing / 2:
            raise ConnectionError("reset")
        return fate < self.failing

    def pipe_file(self, path: str, data: bytes) -> None:
        fails = self._request()
        assert self.contents.objects.get(path, data) == data, f"{path} was written twice, with another content"
        self.contents.objects[path] = data
        self.contents.since[path] = self.contents.requests
        self.contents.put_bytes += len(data)
        if fails:
            raise TimeoutError("no answer")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if self._request():
            raise TimeoutError("no answer")
        if path not in self.contents.objects:
            raise FileNotFoundError(path)
        data = self.contents.objects[path][start:end]
        return data[: len(data) // 2] if self._rng.random() < self.halves else data

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        if self._request():
            raise TimeoutError("no answer")
        prefix = f"{path}/"
        young = self.contents.requests - self.forgets
        found = [
            {"name": name, "size": len(data), "type": "file"}
            for name, data in self.contents.objects.items()
            if name.startswith(prefix)
            and not (self.forgets and self.contents.since[name] > young and self._rng.random() < 0.3)
        ]
        if not found:
            raise FileNotFoundError(path)
        return found

    def rm_file(self, path: str) -> None:
        fails = self._request()
        if self.contents.objects.pop(path, None) is None:
            raise FileNotFoundError(path)
        self.contents.after_delete()
        if fails:
            raise TimeoutError("no answer")
