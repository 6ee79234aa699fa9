"""Decodes JSON from the API server: a watch line by line, a response item by item.

A line that is too long or invalid is returned as `Unreadable`, not raised, so the watch continues. A long list is
decoded one item at a time, so that the event loop can run in between, and no more than one item need be in memory.
Objects of very many values are not read: to parse a megabyte of text takes 3 ms, of short keys 70 ms.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from elasticjob_operator import turn

# The API server takes values that are nested 10,000 deep. They must be read before they can be refused by name.
DEEPEST_JSON = 12_000  # for sys.setrecursionlimit
LARGE_BYTES = 2**16  # a shorter response is decoded at once
SMALL = 2**14  # characters: the end of a longer item of a list is found before it is decoded
# Of one object, in commas, brackets and decimal points: a job of 5,000 members with the largest template has 65,000.
MOST_VALUES = 75_000
TOO_MANY = f"more than {MOST_VALUES} values"
PIECE = 2**16  # characters that are looked through at a time

HEAD_BYTES = 4096  # the start of an unreadable line, which contains the object's name if it comes first
_NAME = re.compile(rb'"name":"([a-z0-9.:-]{1,253})"')
_BETWEEN = re.compile(r'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")++')
_BRACKETS = {"{": 1, "[": 1, "}": -1, "]": -1}
_BRACKETS_A_TURN = 4096
_WHITE = re.compile(r"[ \t\n\r]*")
_NAMESPACE = re.compile(rb'"namespace":"([a-z0-9-]{1,63})"')
_IDENTITY = re.compile(_NAME.pattern + b"," + _NAMESPACE.pattern)  # labels of these names come before it
_AFTER = b'},"spec":{'
_METADATA, _SPEC, _STATUS = '"metadata":{', '},"spec":{', '},"status":{'
# The first of these members, which the API server writes after what identifies an object.
_SIZED = re.compile(r',"(?:labels|annotations|ownerReferences|finalizers|managedFields)":[{\[]')
_TYPES = ("ADDED", "MODIFIED", "DELETED")
WHY = "why"  # the member of an event that tells why its object is not complete
_DELETED = b'{"type":"DELETED",'
_UID = re.compile(rb'"uid":"([0-9A-Za-z-]{1,64})"')
_LAST_UID = re.compile(_UID.pattern + rb"\Z")  # the metadata of a job is sorted


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A skipped line."""

    name: str  # namespace/name of its object, as far as it can be found
    why: str


class Lines:
    """Splits a stream into lines. A line longer than `longest` bytes is never held in memory completely.

    `reduce` makes another line of one with too many values; without it, or if it returns None, that is unreadable.
    """

    def __init__(self, longest: int, reduce: Callable[[str], bytes | None] = lambda line: None) -> None:
        self._longest = longest
        self._reduce = reduce
        self._parts: list[bytes] = []
        self._head = b""
        self._size = 0

    async def feed(self, chunk: bytes) -> AsyncIterator[Any | Unreadable]:
        """The value of each line that ends in this chunk. An incomplete line at the end of a stream is ignored."""
        async for line in self.split(chunk):
            if isinstance(line, Unreadable):
                yield line
                continue
            value = _decode_line(line)
            if len(line) > LARGE_BYTES:
                await turn.pause()  # to read what was decoded takes as long again
            yield value

    async def split(self, chunk: bytes) -> AsyncIterator[bytes | Unreadable]:
        """The lines that end in this chunk, without those that are too long, or would take long to decode.

        Between two of them, and within a long one, the event loop can run.
        """
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size:
                yield await self._take()
                await turn.pause()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._parts.append(part)
        else:
            self._head = self._head or b"".join((*self._parts, part))[:HEAD_BYTES]
            self._parts.clear()

    async def _take(self) -> bytes | Unreadable:
        line, size, head = b"".join(self._parts), self._size, self._head
        self._parts, self._size, self._head = [], 0, b""
        if size > self._longest:
            return bury(head) or Unreadable(find_name(head), f"{size} bytes, which is more than {self._longest}")
        is_suspect = size > LARGE_BYTES and _count_marks(line) > MOST_VALUES
        if is_suspect and await _take_long(text := line.decode(errors="replace")):
            return self._reduce(text) or bury(line) or Unreadable(find_name(line), TOO_MANY)
        return line


def _decode_line(line: bytes) -> Any | Unreadable:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Unreadable(find_name(line), f"no JSON that can be read: {type(error).__name__}")


def find_name(line: bytes) -> str:
    """namespace/name of the object in an unreadable line, for a warning; empty if it is not found.

    They come first in the metadata of what Kubernetes itself knows, and in that of a job after its labels.
    """
    metadata = line[:HEAD_BYTES].partition(b'"metadata":')[2]
    if not metadata.startswith(b'{"name":') and (found := _IDENTITY.findall(line, 0, max(0, line.find(_AFTER)))):
        return b"/".join(reversed(found[-1])).decode()
    name, namespace = _NAME.search(metadata), _NAMESPACE.search(metadata)
    return "/".join(found[1].decode() for found in (namespace, name) if found)


def bury(line: bytes) -> bytes | None:
    """The event of a deletion with the object's identity alone; None if it is another one, or that is not found.

    An object that cannot be read may have been read before its author made it so: what is known of it has to go.
    """
    if not line.startswith(_DELETED):
        return None
    end = line.find(_AFTER)
    is_typed = line[:HEAD_BYTES].partition(b'"metadata":')[2].startswith(b'{"name":')
    found = _UID.search(line) if is_typed else _LAST_UID.search(line, max(0, end - HEAD_BYTES), max(0, end))
    namespace, _, name = find_name(line).rpartition("/")
    if found is None or not name:
        return None
    metadata = {"name": name, "namespace": namespace, "uid": found[1].decode()}
    return json.dumps({"type": "DELETED", "object": {"metadata": metadata}}).encode()


def outline(text: str) -> dict[str, Any] | None:
    """An object of a kind of Kubernetes' own, without the parts of its metadata that may have any size.

    Of its spec and its status, what is not too much. None if it is not written like one.
    """
    begin = text.find(_METADATA, 0, HEAD_BYTES)
    sized = _SIZED.search(text, begin) if begin >= 0 else None
    if sized is None:
        return None
    end = text.rfind("}")
    if text.startswith('{"type":'):
        end = text.rfind("}", 0, end)
    spec = text.find(_SPEC, sized.start())
    status = text.find(_STATUS, max(spec, sized.start()))
    parts = {"metadata": text[begin + len(_METADATA) - 1 : sized.start()] + "}"}
    if spec >= 0:
        parts["spec"] = text[spec + len(_SPEC) - 1 : status + 1 if status >= 0 else end]
    if status >= 0:
        parts["status"] = text[status + len(_STATUS) - 1 : end]
    try:
        found = {name: json.loads(part) for name, part in parts.items() if _count_values(part) <= MOST_VALUES}
    except (ValueError, RecursionError):
        return None
    return found if found.get("metadata", {}).keys() >= {"name", "uid", "resourceVersion"} else None


def outline_event(line: str) -> bytes | None:
    """The event of a watch with the outline of its object, and why it is no more."""
    kind = next((one for one in _TYPES if line.startswith(f'{{"type":"{one}"')), None)
    found = outline(line) if kind is not None else None
    return None if found is None else json.dumps({"type": kind, "object": found, WHY: TOO_MANY}).encode()


def has_too_many_values(text: str) -> bool:
    """Whether parsing it takes long. What is inside of its texts costs little, and is left out where it matters."""
    return any(_look_through(text))


async def _take_long(text: str) -> bool:
    """The same, with turns for others: to look through a megabyte takes as long as to parse it."""
    for is_too_much in _look_through(text):
        if is_too_much:
            return True
        await turn.pause()
    return False


def _look_through(text: str) -> Iterator[bool]:
    """Whether it has too many values, piece by piece: nothing is looked at after the first True."""
    if _count_values(text) <= MOST_VALUES:
        return
    for escaped in (r"\\", r"\""):
        yield False
        text = text.replace(escaped, "")
    count, outside = 0, 0  # which of the parts between quotation marks are outside of texts: the even or the odd ones
    for begin in range(0, len(text), PIECE):
        parts = text[begin : begin + PIECE].split('"')
        count += _count_values("".join(parts[outside::2]))
        yield count > MOST_VALUES
        outside = (outside + len(parts) - 1) % 2


def _count_marks(line: bytes) -> int:
    """The same before it is made text, which takes long where one character makes all others as large as itself."""
    return line.count(b",") + line.count(b"{") + line.count(b"[") + 2 * line.count(b".")


def _count_values(text: str) -> int:
    """A number with a fraction is three: it may have many digits, which take as long."""
    return text.count(",") + text.count("{") + text.count("[") + 2 * text.count(".")


class TooManyError(ValueError):
    """An item of a list has so many values that it is not decoded. The reader stands behind it."""

    def __init__(self, text: str) -> None:
        super().__init__(TOO_MANY)
        self.text = text


class _Reader:
    """A JSON text, read value by value.

    It is held with a character for each byte: one that is none of ASCII would make all of them two or four times as
    large. Only the values that have such characters are made text of their own.
    """

    def __init__(self, data: bytes | bytearray) -> None:
        self._text = data.decode("latin-1")
        self._decoder = json.JSONDecoder()
        self._at = 0
        self.skip()

    async def item(self) -> Any:
        """The next value. Raises ValueError, also for one of too many values, or RecursionError."""
        begin, some = self._at, self._text[self._at : self._at + SMALL]
        try:
            value, size = self._decoder.raw_decode(some) if some.isascii() else (None, len(some))
        except ValueError:
            size = len(some)
        if size < len(some):
            self._at += size
            self.skip()
            return value
        end = await self._find_end()
        await turn.pause()
        text = self._text[begin:end]
        if end - begin > LARGE_BYTES and await _take_long(text):
            self._at = end
            self.skip()
            text = _read_utf8(text)
            await turn.pause()
            raise TooManyError(text)
        await turn.pause()
        value = self.value() if text.isascii() else self._value_of(_read_utf8(text), end)
        await turn.pause()  # to read what was decoded takes as long again
        return value

    async def _find_end(self) -> int:
        """The end of an object or a list; of anything else, and where there is none, what `value` makes an error of."""
        end = at = self._at
        depth, count, size = 0, 0, PIECE
        while at < len(self._text) and size < 2 * len(self._text):
            between = _BETWEEN.match(self._text, at, at + size)
            at, before = between.end() if between else at, at
            mark = self._text[at : at + 1]
            if mark in _BRACKETS:
                end = at = at + 1
                depth += _BRACKETS[mark]
                if depth <= 0:
                    break
                count += 1
                if count % _BRACKETS_A_TURN:
                    continue
            else:
                size = 2 * size if at == before else PIECE  # a text may be longer than a piece
            await turn.pause()
        return end

    def skip(self) -> None:
        found = _WHITE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def take(self, mark: str) -> bool:
        """Whether this mark is next; consumes it if so."""
        if not self._text.startswith(mark, self._at):
            return False
        self._at += 1
        self.skip()
        return True

    def value(self) -> Any:
        """The next value. Raises ValueError or RecursionError."""
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        self.skip()
        return value

    def _value_of(self, text: str, end: int) -> Any:
        """The next value, which ends there. Raises ValueError or RecursionError."""
        value, size = self._decoder.raw_decode(text)
        self._at = end if size == len(text) else self._at + len(text[:size].encode())
        self.skip()
        return value

    def members(self, end: str) -> Iterator[None]:
        """Yield once for each member of the current list or object. Raises ValueError if a comma is missing."""
        if self.take(end):
            return
        yield
        while not self.take(end):
            self.expect(",")
            yield

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise ValueError(f"no {mark!r} at character {self._at}")

    def end(self) -> None:
        if self._at != len(self._text):
            raise ValueError("more than one value")


def _read_utf8(text: str) -> str:
    """Text of which each character is a byte. Raises ValueError."""
    return text.encode("latin-1").decode()


Take = Callable[[Any], Any]
Head = Callable[[Any], Awaitable[None]]


def keep(item: Any) -> Any:
    return item


async def ignore(metadata: Any) -> None:
    """No use for the metadata of a list."""


async def decode(
    data: bytes | bytearray, take: Take = keep, head: Head = ignore, reduce: Callable[[str], Any] | None = None
) -> Any:
    """The value of a response; yields to the event loop between list items. Raises ValueError or RecursionError.

    Each item of a list is replaced by what `take` makes of it, as soon as it is decoded: what `take` does not keep is
    freed. `head` gets the list's metadata, which most lists begin with, before their items are decoded. Both may have
    been called when the rest of the response turns out to be invalid. An item of too many values, or a response that
    is no list and has too many in one of its members, is what `reduce` makes of its text; without `reduce`, the
    response is invalid.
    """
    reader = _Reader(data) if len(data) > LARGE_BYTES else None
    if reader is None or not reader.take("{"):
        return await _convert(json.loads(data), take, head)
    await asyncio.sleep(0)  # to make text of a long response takes long
    value: dict[str, Any] = {}
    for _ in reader.members("}"):
        name = reader.value()
        reader.expect(":")
        if name == "items" and reader.take("["):
            value[name] = await _decode_items(reader, take, reduce)
            continue
        try:
            value[name] = await reader.item()
        except TooManyError:
            if reduce is None:
                raise
            return reduce(data.decode())
        if name == "metadata":
            await head(value[name])
    reader.end()
    return value


async def _convert(value: Any, take: Take, head: Head) -> Any:
    """The same for a short response, which is decoded already."""
    if isinstance(value, dict):
        if "metadata" in value:
            await head(value["metadata"])
        if isinstance(value.get("items"), list):
            value["items"] = [take(item) for item in value["items"]]
    return value


async def _decode_items(reader: _Reader, take: Take, reduce: Callable[[str], Any] | None) -> list[Any]:
    items = []
    for _ in reader.members("]"):
        try:
            item = await reader.item()
        except TooManyError as error:
            if reduce is None:
                raise
            item = reduce(error.text)
        items.append(take(item))
        await turn.pause()
    return items
