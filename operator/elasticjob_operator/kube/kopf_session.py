"""kopf's connection to the API server, with the bounds of our own.

kopf decodes a page of a list at once, and each line of a watch, whatever is in it: a megabyte of short values occupies
the event loop for a tenth of a second, and so does a run of large lines that have all arrived. On this connection,
pages are decoded item by item, other tasks get their turn between two lines, and of a job of too many values the
metadata is read alone, or what identifies it, if they are in the metadata: its spec becomes one that is refused for
the same reason. kopf asks for pages of a fixed number of jobs: here, they get as many as fit.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import kopf

from elasticjob_operator import numerals
from elasticjob_operator.api import bounds
from elasticjob_operator.kube.client import LARGEST_BYTES
from elasticjob_operator.rest.json_stream import HEAD_BYTES, Lines, Unreadable, decode, find_name, has_too_many_values
from elasticjob_operator.turn import Turn

Skip = Callable[[Unreadable], object]
FEWEST: Final = 5  # jobs of a first page: they may be large, and kopf holds all of them
MOST, FASTER = 500, 8  # jobs of a page, and by what factor they become more or fewer
PAGE_BYTES, MOST_PAGE_BYTES = 2**21, 2**23
_METADATA: Final = '"metadata":'
_SPEC: Final = ',"spec":{'  # an annotation or a label of this name is no object
_END: Final = '},"spec":{'
_VERSION: Final = re.compile(
    r'"resourceVersion":"([0-9]{1,20})",(?:"selfLink":"[^"]*",)?"uid":"([0-9A-Za-z-]{1,64})"\Z'
)
_GENERATION: Final = re.compile(r'[{,]"generation":([0-9]{1,18}),')
_TYPES: Final = ("ADDED", "MODIFIED", "DELETED")


def reduce_job(job: dict[str, Any]) -> dict[str, Any]:
    """The job with a spec that has too many values, too, and costs nothing."""
    kept: dict[str, Any] = {name: job[name] for name in ("apiVersion", "kind", "metadata") if name in job}
    return {**kept, "spec": {"template": [None] * (bounds.MOST_VALUES + 1)}}


def reduce_item(text: str) -> dict[str, Any]:
    """The same for an item of a list. Raises ValueError."""
    metadata = _read_metadata(text)
    return reduce_job({"metadata": metadata} if metadata is not None else json.loads(text))


def reduce_line(line: str) -> bytes | None:
    """The same for an event of a watch; None if its metadata is not where it should be."""
    kind = next((one for one in _TYPES if line.startswith(f'{{"type":"{one}"')), None)
    metadata = _read_metadata(line)
    if kind is None or metadata is None:
        return None
    return json.dumps({"type": kind, "object": reduce_job({"metadata": metadata})}).encode()


def _read_metadata(text: str) -> Any:
    begin = text.find(_METADATA, 0, HEAD_BYTES) + len(_METADATA)
    if begin < len(_METADATA):
        return None
    if has_too_many_values(text[begin : text.find(_SPEC, begin)]):
        return _identify(text)
    try:
        metadata, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return metadata


def _identify(text: str) -> dict[str, Any] | None:
    """What identifies a job and its version, from the ends of its metadata, whose members are sorted."""
    end = text.find(_END)
    namespace, _, name = find_name(text.encode()).rpartition("/")
    last = _VERSION.search(text, max(0, end - HEAD_BYTES), max(0, end))
    if last is None or not name:
        return None
    found: dict[str, Any] = {"name": name, "namespace": namespace, "resourceVersion": last[1], "uid": last[2]}
    generation = _GENERATION.search(text, 0, end)  # a label's would be a text
    return found | ({"generation": numerals.read_count(generation[1])} if generation else {})


class _Content:
    """The content of a response; what kopf reads of it in chunks is one line after the other."""

    def __init__(self, content: aiohttp.StreamReader, skip: Skip) -> None:
        self._content = content
        self._skip = skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        lines, turn = Lines(LARGEST_BYTES, reduce_line), Turn()
        async for chunk in self._content.iter_chunked(size):
            for line in lines.split(chunk):
                if isinstance(line, Unreadable):
                    self._skip(line)
                else:
                    yield line + b"\n"
                await turn.pause()


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
