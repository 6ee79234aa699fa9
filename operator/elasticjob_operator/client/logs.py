"""The logs of all ranks of a job as one stream of lines.

One stream per pod, merged in order of arrival. While following, pods that join later are added, and a broken stream
continues where it ended: the server's timestamps show which lines were already read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from elasticjob_operator.client import errors
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.model import Job, Pod
from elasticjob_operator.rest.request import Request, path_of
from elasticjob_operator.times import format_time, parse_time

T = TypeVar("T")

_STAMP: Final = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ?(.*)$", re.DOTALL)
_FRACTION: Final = re.compile(r"\.(\d+)")
_LOOK_EVERY: Final = 1.0
_SHARE: Final = 10  # looking takes at most this part of the time ...
_LOOK_AT_LEAST_EVERY: Final = 30.0  # ... unless a server is that slow
MOST_LINE: Final = 2**20  # bytes
_MOST_WAITING: Final = 2**18  # bytes of lines that nobody has taken yet


@dataclass(frozen=True)
class Line:
    """One line of one pod. `ranks` are the pod's ranks in the current world, empty if it has none."""

    pod: str
    ranks: range
    text: str
    time: str | None = None


@dataclass(frozen=True)
class Window:
    """A stretch of time, in seconds since 1970; without an end if that is not known yet."""

    since: float
    until: float | None = None

    def covers(self, stamp: str | None) -> bool:
        time = parse_time(stamp)
        return time is not None and self.since <= time and (self.until is None or time < self.until)


def find_window(job: Job, generation: int) -> Window | None:
    """From when this world was formed until the next one was; None if the timeline does not have it (any more)."""
    formed = {w.generation: time for w in job.status.timeline if (time := parse_time(w.time)) is not None}
    if generation not in formed:
        return None
    later = [time for other, time in formed.items() if other > generation]
    return Window(formed[generation], min(later, default=None))


def split_stamp(line: str) -> tuple[str | None, str]:
    """The server's timestamp, and the line without it."""
    found = _STAMP.match(line)
    return (found.group(1), found.group(2)) if found else (None, line)


def is_newer(stamp: str | None, seen: str | None) -> bool:
    """Whether a line is newer than the last one. The server omits trailing zeros of fractional seconds."""
    return stamp is None or seen is None or _padded(stamp) > _padded(seen)


def _padded(stamp: str) -> tuple[float, str]:
    """The whole second, and the fraction with all its digits."""
    fraction = _FRACTION.search(stamp)
    return parse_time(_FRACTION.sub("", stamp)) or 0.0, f"{fraction.group(1) if fraction else '':0<9}"


async def read_pod(
    connection: Connection,
    pod: Pod,
    namespace: str,
    *,
    follow: bool,
    tail: int | None,
    since: str | None = None,
    longest: int = MOST_LINE,
) -> AsyncGenerator[tuple[str | None, str], None]:
    """(timestamp, line) of the log of a pod's trainer container. A line of more than `longest` bytes is cut."""
    query = [("container", pod.trainer), ("timestamps", "true")]
    query += [("follow", "true")] if follow else []
    query += [("tailLines", str(tail))] if tail is not None else []
    query += [("sinceTime", since)] if since else []
    path = path_of("v1", "pods", namespace, pod.name, "log")
    request = Request("GET", path, f"logs of pod {pod.name}", tuple(query), accept="*/*")
    async with contextlib.aclosing(connection.stream_lines(request, longest)) as lines:
        async for line in lines:
            yield split_stamp(line)


class LineQueue(Generic[T]):
    """A queue of lines that take at most `most` bytes of memory, or that is one line. Those who wait take turns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._left = asyncio.Event()
        self._turn = asyncio.Lock()  # one waits for room, and the others for it, in order
        self._lines: asyncio.Queue[tuple[T, int]] = asyncio.Queue()

    async def put(self, line: T, text: str) -> None:
        """`text` is what takes the memory."""
        size = sys.getsizeof(text)
        async with self._turn:
            while self._held and self._held + size > self._most:
                self._left.clear()
                await self._left.wait()
            self._held += size
            self._lines.put_nowait((line, size))

    async def get(self) -> T:
        return self._take(await self._lines.get())

    def get_nowait(self) -> T:
        return self._take(self._lines.get_nowait())

    def empty(self) -> bool:
        return self._lines.empty()

    def _take(self, found: tuple[T, int]) -> T:
        self._held -= found[1]
        self._left.set()
        return found[0]


class Merger:
    """Reads the log of every pod that `look` returns, and yields their lines as they arrive."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        look: Callable[[], Awaitable[tuple[Job | None, list[Pod]]]],
        *,
        follow: bool,
        tail: int | None,
        window: Window | None = None,
        longest: int = MOST_LINE,
    ) -> None:
        self._window, self._longest = window, longest
        self._connection = connection
        self._namespace = namespace
        self._look = look
        self._follow = follow
        self._tail = tail
        self._lines: LineQueue[Line] = LineQueue(_MOST_WAITING)
        self._readers: dict[str, asyncio.Task[None]] = {}  # by pod UID
        self._seen: dict[str, str] = {}
        self._job: Job | None = None

    async def lines(self) -> AsyncGenerator[Line, None]:
        director = asyncio.create_task(self._direct())
        try:
            while True:
                getter = asyncio.create_task(self._lines.get())
                await asyncio.wait((getter, director), return_when=asyncio.FIRST_COMPLETED)
                if getter.done():
                    yield getter.result()
                    continue
                getter.cancel()
                while not self._lines.empty():
                    yield self._lines.get_nowait()
                await director  # raises its error, if any
                return
        finally:
            tasks = (director, *self._readers.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _direct(self) -> None:
        """Start a reader for every pod with a log; return when no further lines can arrive."""
        while True:
            began = time.monotonic()
            self._job, pods = await self._look()
            took = time.monotonic() - began
            for pod in pods:
                if pod.started and pod.uid not in self._readers:
                    self._readers[pod.uid] = asyncio.create_task(self._read(pod))
            for reader in self._readers.values():
                if reader.done():
                    reader.result()  # raises its error now, not when the job ends
            over = not self._follow or self._job is None or self._job.status.finished
            if over:
                await asyncio.gather(*self._readers.values())
                return
            await asyncio.sleep(max(_LOOK_EVERY, min(_SHARE * took, _LOOK_AT_LEAST_EVERY)))

    async def _read(self, pod: Pod) -> None:
        while True:
            seen = self._seen.get(pod.uid)
            tail = self._tail if seen is None else None
            since = seen if seen or self._window is None else format_time(self._window.since)
            reader = read_pod(
                *(self._connection, pod, self._namespace),
                follow=self._follow,
                tail=tail,
                since=whole_second(since),
                longest=self._longest,
            )
            try:
                async with contextlib.aclosing(reader):
                    async for stamp, text in reader:
                        if not is_newer(stamp, seen) or not (self._window is None or self._window.covers(stamp)):
                            continue
                        self._seen[pod.uid] = stamp or self._seen.get(pod.uid, "")
                        ranks = self._job.rank_ranges().get(pod.name, range(0)) if self._job else range(0)
                        await self._lines.put(Line(pod.name, ranks, text, stamp), text)
            except errors.NotFoundError:
                return  # the pod and its log were deleted
            except (errors.InvalidError, errors.UnreachableError):
                if not self._follow:
                    raise
            if not self._follow or not await self._goes_on(pod):
                return
            await asyncio.sleep(_LOOK_EVERY)

    async def _goes_on(self, pod: Pod) -> bool:
        """Whether more lines may follow: the stream broke while the pod runs."""
        path = path_of("v1", "pods", self._namespace, pod.name)
        try:
            now = Pod(await self._connection.ask(Request("GET", path, f"get pod {pod.name}")))
        except errors.ClientError:
            return False
        return now.uid == pod.uid and not now.ended and bool(self._seen.get(pod.uid))


def whole_second(stamp: str | None) -> str | None:
    """`sinceTime` has whole seconds: request from the start of the second, and drop the lines read before."""
    second = None if stamp is None else parse_time(_FRACTION.sub("", stamp))
    return None if second is None else format_time(second).partition(".")[0] + "Z"
