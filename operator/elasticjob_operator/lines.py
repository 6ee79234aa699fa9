"""A stream of bytes, cut into JSON lines. What is too long or cannot be read is told, not raised: the rest goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HEAD_BYTES = 4096  # of a line that cannot be read: its object's name is in there, for metadata comes first
_NAME = re.compile(rb'"name":"([a-z0-9.:-]{1,253})"')
_NAMESPACE = re.compile(rb'"namespace":"([a-z0-9-]{1,63})"')


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that was left out."""

    name: str  # namespace/name of the object that it tells of, as far as it can be made out
    why: str


class Lines:
    """Cuts what is fed into lines. A longer one than `longest` bytes is never held in memory as a whole."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._head = b""
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Any | Unreadable]:
        """The value of each line that ends in this chunk. What is left at the end of a stream is no line."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size:
                yield self._take()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._parts.append(part)
        else:
            self._head = self._head or b"".join((*self._parts, part))[:HEAD_BYTES]
            self._parts.clear()

    def _take(self) -> Any | Unreadable:
        line, size, head = b"".join(self._parts), self._size, self._head
        self._parts, self._size, self._head = [], 0, b""
        if size > self._longest:
            return Unreadable(find_name(head), f"{size} bytes, which is more than {self._longest}")
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            return Unreadable(find_name(line[:HEAD_BYTES]), f"no JSON that can be read: {type(error).__name__}")


def find_name(head: bytes) -> str:
    """namespace/name of the object that begins so, for a warning; empty where it is not to be seen."""
    metadata = head.partition(b'"metadata":')[2]
    name, namespace = _NAME.search(metadata), _NAMESPACE.search(metadata)
    return "/".join(found[1].decode() for found in (namespace, name) if found)
