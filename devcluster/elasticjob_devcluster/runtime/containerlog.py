"""A container's log: each line of output with time and stream, in the format of container runtimes.

`<RFC 3339 time> <stdout|stderr> <F|P> <text>`; P marks a part of a line that exceeds the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_LINE: Final = 16 * 1024


class LogWriter:
    """Reads a container's two pipes and appends to its log file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._reading: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}
        self._open: set[str] = set()
        self._done = asyncio.Event()

    def pipe(self, stream: str) -> int:
        """The write end for this stream; the caller closes it once the child has it."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._reading[stream] = read
        self._partial[stream] = b""
        return write

    async def attach(self) -> None:
        loop = asyncio.get_running_loop()
        for stream, read in self._reading.items():
            self._open.add(stream)
            loop.add_reader(read, self._read, stream)

    def _read(self, stream: str) -> None:
        try:
            data = os.read(self._reading[stream], 256 * 1024)
        except BlockingIOError:
            return
        if data:
            self._write(stream, data)
            return
        self._end(stream)

    def _end(self, stream: str) -> None:
        asyncio.get_running_loop().remove_reader(self._reading[stream])
        self._open.discard(stream)
        if rest := self._partial[stream]:
            os.write(self._file, format_line(_now(), stream, rest, partial=True))
            self._partial[stream] = b""
        if not self._open:
            self._done.set()

    def _write(self, stream: str, data: bytes) -> None:
        lines = (self._partial[stream] + data).split(b"\n")
        self._partial[stream] = lines.pop()
        now = _now()
        out = [format_line(now, stream, line) for line in lines]
        if len(self._partial[stream]) > MAX_LINE:
            out.append(format_line(now, stream, self._partial[stream], partial=True))
            self._partial[stream] = b""
        if out:
            os.write(self._file, b"".join(out))

    async def drain(self) -> None:
        """Read the remaining output after the exit, without waiting for a process that keeps the pipe open."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), 0.5)
        for stream in list(self._open):
            self._end(stream)
        self.close()

    def close(self) -> None:
        for read in self._reading.values():
            os.close(read)
        self._reading.clear()
        os.close(self._file)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def format_line(now: str, stream: str, text: bytes, *, partial: bool = False) -> bytes:
    return b"%s %s %s %s\n" % (now.encode(), stream.encode(), b"P" if partial else b"F", text)


@dataclass(frozen=True)
class Line:
    time: str
    stream: str
    text: bytes  # with its newline, unless it is a part


def parse_line(raw: bytes) -> Line | None:
    parts = raw.rstrip(b"\n").split(b" ", 3)
    if len(parts) != 4:
        return None
    return Line(parts[0].decode(), parts[1].decode(), parts[3] + (b"" if parts[2] == b"P" else b"\n"))


def tail_text(path: Path, *, lines: int, limit: int) -> str:
    """The end of a log without times, as reported by FallbackToLogsOnError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ""
    texts = [line.text for raw in content.rstrip(b"\n").split(b"\n")[-lines:] if (line := parse_line(raw))]
    return b"".join(texts)[-limit:].decode(errors="replace")


def time_before(seconds: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def show(raw: bytes, *, times: bool, since: str) -> bytes:
    """One stored line in the requested form; empty if it is older than `since`."""
    line = parse_line(raw)
    if line is None or line.time[:19] < since[:19]:
        return b""
    return line.time.encode() + b" " + line.text if times else line.text
