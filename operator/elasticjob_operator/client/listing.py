"""Lists in pages, and watches, of one resource. Retries are the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from elasticjob_operator.client import rules
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.model import Change, Job, whole
from elasticjob_operator.rest import json_stream
from elasticjob_operator.rest.request import Request

_PAGE: Final = 500
_FEWER: Final = 8  # times, where these are too many bytes
MOST_BYTES: Final = 2**25  # of a page of more than one object
_WATCH_SECONDS: Final = 240
_MOST_EVENT: Final = 2**26  # bytes: no object that the API server stores has as many

Query = tuple[tuple[str, str], ...]
_FROM_CACHE: Final[Query] = (("resourceVersion", "0"),)


async def list_all(
    connection: Connection,
    path: str,
    what: str,
    selector: str | None = None,
    more: Query = (),
    *,
    from_cache: bool = False,
    take: Callable[[Any], Any] = json_stream.keep,
) -> tuple[list[Any], str]:
    """What `take` makes of each object in all pages of a list, and its resource version. Raises ClientError.

    A page of large objects is asked for again in smaller ones, so that only what `take` keeps has to fit into memory.

    `from_cache`: what the API server has in memory. It does not read and decode every object from etcd, which takes
    most of a list's time, but its memory may be behind by what it has not been told yet: milliseconds, or longer if it
    has lost etcd. Most versions then return everything as one page.
    """
    found: list[Any] = []
    query = (*more, *((("labelSelector", selector),) if selector else ()))
    place: Query = _FROM_CACHE if from_cache else ()
    limit = _PAGE
    while True:
        request = Request("GET", path, what, (("limit", str(limit)), *query, *place))
        page = await connection.ask_items(request, take, MOST_BYTES if limit > 1 else None)
        if page is None:
            limit = max(1, limit // _FEWER)
            place = () if place == _FROM_CACHE else place  # whoever answers from memory may not know pages
            continue
        found += page.get("items") or []
        metadata = page.get("metadata") or {}
        token = metadata.get("continue") or ""
        if not token:
            return found, str(metadata.get("resourceVersion") or "")
        place = (("continue", token),)


async def stream_changes(
    connection: Connection, path: str, query: Query, version: str, keep: Callable[[Job], Job] = whole
) -> AsyncGenerator[Change, None]:
    """The changes of jobs since this version, until the server ends the watch. Raises ClientError."""
    options = (("watch", "true"), ("resourceVersion", version), ("timeoutSeconds", str(_WATCH_SECONDS)))
    lines = connection.stream_lines(Request("GET", path, "watch jobs", (*query, *options)), _MOST_EVENT)
    async with contextlib.aclosing(lines):
        async for line in lines:
            change = rules.parse_change(line, keep)
            if change is not None:
                yield change
