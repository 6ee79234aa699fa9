"""Lists in pages, and watches, of one resource. Retries are the caller's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from elasticjob_operator.client import rules
from elasticjob_operator.client.connection import Connection
from elasticjob_operator.client.model import Change, Raws
from elasticjob_operator.rest.request import Request

_PAGE: Final = "500"
_WATCH_SECONDS: Final = 240

Query = tuple[tuple[str, str], ...]


async def list_all(
    connection: Connection,
    path: str,
    what: str,
    selector: str | None = None,
    more: Query = (),
    *,
    from_cache: bool = False,
) -> tuple[Raws, str]:
    """All pages of a list, and its resource version. Raises ClientError.

    `from_cache`: what the API server has in memory. It does not read and decode every object from etcd, which takes
    most of a list's time, but its memory may be behind by what it has not been told yet: milliseconds, or longer if it
    has lost etcd. Most versions then return everything as one page.
    """
    found: Raws = []
    query = (("limit", _PAGE), *more, *((("labelSelector", selector),) if selector else ()))
    place: Query = (("resourceVersion", "0"),) if from_cache else ()
    while True:
        page = await connection.ask(Request("GET", path, what, (*query, *place)))
        found += page.get("items") or []
        metadata = page.get("metadata") or {}
        token = metadata.get("continue") or ""
        if not token:
            return found, str(metadata.get("resourceVersion") or "")
        place = (("continue", token),)


async def stream_changes(connection: Connection, path: str, query: Query, version: str) -> AsyncGenerator[Change, None]:
    """The changes of jobs since this version, until the server ends the watch. Raises ClientError."""
    options = (("watch", "true"), ("resourceVersion", version), ("timeoutSeconds", str(_WATCH_SECONDS)))
    async for line in connection.stream_lines(Request("GET", path, "watch jobs", (*query, *options))):
        change = rules.parse_change(line)
        if change is not None:
            yield change
