"""kopf's connection to the API server, with the bounds of our own.

kopf decodes a page of a list at once, and each line of a watch, whatever is in it: a megabyte of short values occupies
the event loop for a tenth of a second, and so does a run of large lines that have all arrived. On this connection,
pages are decoded item by item, other tasks get their turn between two lines, and a job of too many values is reduced
(`reduced_jobs`). kopf asks for pages of a fixed number of jobs: here, they get as many as fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import kopf

from elasticjob_operator.kube.client import LARGEST_BYTES
from elasticjob_operator.kube.reduced_jobs import reduce_item, reduce_line
from elasticjob_operator.rest.json_stream import Lines, Unreadable, decode

Skip = Callable[[Unreadable], object]
FEWEST: Final = 5  # jobs of a first page: they may be large, and kopf holds all of them
MOST, FASTER = 500, 8  # jobs of a page, and by what factor they become more or fewer
PAGE_BYTES, MOST_PAGE_BYTES = 2**21, 2**23


class _Content:
    """The content of a response; what kopf reads of it in chunks is one line after the other."""

    def __init__(self, content: aiohttp.StreamReader, skip: Skip) -> None:
        self._content = content
        self._skip = skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        lines = Lines(LARGEST_BYTES, reduce_line)
        async for chunk in self._content.iter_chunked(size):
            async for line in lines.split(chunk):
                if isinstance(line, Unreadable):
                    self._skip(line)
                else:
                    yield line + b"\n"


class Pages:
    """Asks for as many jobs at once as fit into PAGE_BYTES, going by the last page; of too large a page, for fewer."""

    def __init__(self) -> None:
        self._limit = FEWEST

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "limit" not in request.url.query:
            return await handler(request)
        while True:
            request.url = request.url.update_query(limit=str(self._limit))
            response = await handler(request)
            if response.status != HTTPStatus.OK or not isinstance(response, _Page):
                return response
            size = await response.load(MOST_PAGE_BYTES if self._limit > 1 else sys.maxsize)
            if size <= MOST_PAGE_BYTES or self._limit == 1:
                fitting = self._limit * PAGE_BYTES // max(1, size)
                self._limit = max(1, min(MOST, FASTER * self._limit, fitting))
                return response
            response.close()
            self._limit = max(1, self._limit // FASTER)


class _Page(aiohttp.ClientResponse):
    """A response whose body is read before kopf gets it."""

    page: bytearray | None = None

    async def load(self, most: int) -> int:
        """Read the body; return its size, or more than `most` if it is larger, which is not read to its end."""
        self.page = bytearray()
        async for part in self.content.iter_any():
            self.page += part
            if len(self.page) > most:
                break
        return len(self.page)


def open_session(info: kopf.ConnectionInfo, skip: Skip) -> aiohttp.ClientSession:
    """A session with these credentials. `skip` is told of each object that is left out."""

    class Response(_Page):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            self.content = _Content(self.content, skip)  # type: ignore[assignment]
            return self

        async def json(self, **_: Any) -> Any:
            try:
                return await decode(await self.read() if self.page is None else self.page, reduce=reduce_item)
            except UnicodeDecodeError as error:
                raise json.JSONDecodeError(str(error), "", 0) from None  # which kopf expects of an answer without JSON

    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
    return aiohttp.ClientSession(
        connector=connector, headers=info.as_http_headers(), response_class=Response, middlewares=(Pages(),)
    )
