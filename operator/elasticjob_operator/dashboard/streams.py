"""Streams of changes (server-sent events): of the list, of one job, and of logs. Each sends only what changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from elasticjob_operator import numerals
from elasticjob_operator.client import Client, ClientError, Job
from elasticjob_operator.client.logs import LineQueue
from elasticjob_operator.dashboard import guard, listpage, shell
from elasticjob_operator.dashboard.board import Board
from elasticjob_operator.dashboard.jobpage import Seen
from elasticjob_operator.dashboard.looking import Looker
from elasticjob_operator.dashboard.places import Places, viewer
from elasticjob_operator.html_report import escape
from elasticjob_operator.kube.fair_queue import Slots
from elasticjob_operator.text import printable
from elasticjob_operator.view import words

_PAUSE: Final = 0.5  # between two messages of a stream
_BEAT: Final = 10.0  # a stream says something at least as often
MOST_STREAMS: Final = 64
MOST_OF_ONE: Final = 16  # of one viewer
MOST_PODS: Final = 32  # whose logs one stream reads: each is a connection to the API server
MOST_PODS_IN_ALL: Final = 256  # of all streams, of which one gets half of what is left, and at least one
_LOG_TAIL: Final = 1000
_LOG_WIDTH: Final = 4000  # characters, of up to four bytes
LOG_BYTES: Final = 2**14  # of lines that wait to be sent: as JSON they take up to six times as many


class Streams:
    """`find`: the job that a request is about. `build`: the regions of its page."""

    def __init__(
        self,
        client: Client,
        board: Board,
        find: Callable[[web.Request], Job],
        build: Callable[[web.Request, Job, Seen], dict[str, str]],
        turns: Slots,
    ) -> None:
        self._client = client
        self._turns = turns  # of looks
        self._board = board
        self._find = find
        self._regions = build
        self._places = Places(MOST_STREAMS, MOST_OF_ONE)
        self._followed = 0  # pods whose logs they may read

    @contextlib.asynccontextmanager
    async def _stream(self, request: web.Request) -> AsyncIterator[web.StreamResponse]:
        with self._places.take(request):
            headers = {**guard.HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            yield response

    async def send_jobs(self, request: web.Request) -> web.StreamResponse:
        query, page = request.query.get("q", ""), number(request, "page", 1)
        sent: dict[str, str] = {}
        sent_order: list[str] = []
        sent_regions: dict[str, str] = {}
        async with self._stream(request) as response:
            while True:
                version = self._board.version
                view = self._board.view(query, page)
                order = [row.id for row in view.rows]
                regions = {
                    "problem": shell.build_problem(self._board.problem),
                    "count": escape(listpage.count_text(view)),
                    "pages": listpage.build_pages(view, query),
                }
                message: dict[str, Any] = {"regions": _differences(regions, sent_regions)}
                rows = listpage.find_changed(view.rows, sent)
                if rows or order != sent_order:
                    message |= {"order": order, "rows": rows}
                news = message if rows or message["regions"] or "order" in message else None
                if not await _send(response, news):
                    return response
                sent, sent_order, sent_regions = {row.id: row.html for row in view.rows}, order, regions
                await asyncio.sleep(_PAUSE)
                await self._board.wait(version, _BEAT)

    async def send_job(self, request: web.Request) -> web.StreamResponse:
        job = self._find(request)
        looker = Looker(self._client, job.namespace, job.name, self._turns, viewer(request), self._board)
        sent: dict[str, str] = {}
        async with self._stream(request) as response:
            await looker.look()
            while True:
                version = self._board.version
                current = self._board.find(job.namespace, job.name)
                if current is None:
                    gone = f'<p class="problem" role="alert">{escape(job.name)} was deleted.</p>'
                    await _send(response, {"regions": {"state": gone, "controls": ""}, "gone": True})
                    return response
                regions = self._regions(request, current, looker.seen)
                changed = _differences(regions, sent)
                if not await _send(response, {"regions": changed} if changed else None):
                    return response
                sent = regions
                await asyncio.sleep(_PAUSE)
                await self._board.wait(version, looker.pause)
                await looker.look()

    async def send_logs(self, request: web.Request) -> web.StreamResponse:
        job = self._find(request)
        rank = number(request, "rank", -1)
        async with self._stream(request) as response:
            most = max(1, min(_most_pods(job), (MOST_PODS_IN_ALL - self._followed) // 2)) if rank < 0 else 1
            self._followed += most
            try:
                await self._send_lines(response, job, rank, most)
            finally:
                self._followed -= most
        return response

    async def _send_lines(self, response: web.StreamResponse, job: Job, rank: int, most: int) -> None:
        """Of the first so many pods, or of one rank."""
        follow = not job.status.finished
        reader = self._client.logs(
            *(job.name, job.namespace),
            rank=rank if rank >= 0 else None,
            follow=follow,
            tail=_LOG_TAIL,
            most=most,
            longest=4 * _LOG_WIDTH,
        )
        lines: LineQueue[str] = LineQueue(LOG_BYTES)

        async def read() -> None:
            async for line in reader:
                ranks = f"[{words.ranks(line.ranks)}] " if rank < 0 else ""
                text = printable(ranks + line.text[:_LOG_WIDTH]).replace("\n", "�")
                await lines.put(text, text)

        reading = asyncio.create_task(read())
        try:
            many = rank < 0 and job.status.replicas > most
            which = f" the first {most} pods" if many else ""
            await _send(response, {"state": f"Following{which}." if follow else f"Reading{which}."})
            while not (reading.done() and lines.empty()):
                found = await _take(lines, reading)
                if not await _send(response, {"lines": found} if found else None):
                    return
            error = reading.exception()
            said = str(error) if isinstance(error, ClientError) else "The log has ended."
            await _send(response, {"state": printable(said), "end": True})
            if error is not None and not isinstance(error, ClientError):
                raise error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await reader.aclose()


def _most_pods(job: Job) -> int:
    """How many pods one stream reads at most: twice those of a small job, some of which others may be replacing."""
    sizes = (job.status.replicas, MOST_PODS if job.spec is None else job.spec.max_replicas)
    return min(MOST_PODS, 2 * max(sizes))


async def _take(lines: LineQueue[str], reading: asyncio.Task[None]) -> list[str]:
    """The lines that are there, or the first that arrives; none after a while, or at the end."""
    getter = asyncio.create_task(lines.get())
    try:
        await asyncio.wait((getter, reading), timeout=_BEAT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not getter.done():
            getter.cancel()
    found = [getter.result()] if getter.done() and not getter.cancelled() else []
    while not lines.empty():
        found.append(lines.get_nowait())
    return found


async def _send(response: web.StreamResponse, message: Mapping[str, Any] | None) -> bool:
    """One message, or without one a comment. Whether the viewer is still there."""
    # JSON escapes whatever is not ASCII, so that lone surrogates arrive too.
    text = f"data: {json.dumps(message, separators=(',', ':'))}\n\n" if message is not None else ": \n\n"
    try:
        await response.write(text.encode())
    except ConnectionResetError:
        return False
    return True


def _differences(regions: Mapping[str, str], sent: Mapping[str, str]) -> dict[str, str]:
    return {name: html for name, html in regions.items() if sent.get(name) != html}


def number(request: web.Request, name: str, default: int) -> int:
    found = numerals.read_count(request.query.get(name), 10**8 - 1)
    return default if found is None else found
