"""kopf's connection to the API server, with the bounds of our own.

kopf decodes a page of a list at once, and each line of a watch, whatever is in it: a megabyte of short values occupies
the event loop for a tenth of a second, and so does a run of large lines that have all arrived. On this connection,
pages are decoded item by item, other tasks get their turn between two lines, and an object of too many values is left
out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf

from elasticjob_operator.kube.client import LARGEST_BYTES
from elasticjob_operator.kube.json_stream import Lines, Skip, Unreadable, decode
from elasticjob_operator.turn import Turn

_DELETED = b'{"type":"DELETED"'


class _Content:
    """The content of a response; what kopf reads of it in chunks is one line after the other."""

    def __init__(self, content: aiohttp.StreamReader, skip: Skip) -> None:
        self._content = content
        self._skip = skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        lines, turn = Lines(LARGEST_BYTES, always=_DELETED), Turn()
        async for chunk in self._content.iter_chunked(size):
            for line in lines.split(chunk):
                if isinstance(line, Unreadable):
                    self._skip(line)
                else:
                    yield line + b"\n"
                await turn.pause()


def open_session(info: kopf.ConnectionInfo, skip: Skip) -> aiohttp.ClientSession:
    """A session with these credentials. `skip` is told of each object that is left out."""

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            self.content = _Content(self.content, skip)  # type: ignore[assignment]
            return self

        async def json(self, **_: Any) -> Any:
            try:
                return await decode(await self.read(), skip=skip)
            except UnicodeDecodeError as error:
                raise json.JSONDecodeError(str(error), "", 0) from None  # which kopf expects of an answer without JSON

    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
    return aiohttp.ClientSession(connector=connector, headers=info.as_http_headers(), response_class=Response)
