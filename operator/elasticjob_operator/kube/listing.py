"""Reads long lists page by page, even if objects are large or invalid.

A page that is too large or cannot be decoded is requested again in smaller pieces, until the responsible object is
alone; it is skipped by name. So no object hides the others, and the objects of a large cluster are never in memory
together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake, name_of
from elasticjob_operator.rest.errors import UnreadableError
from elasticjob_operator.rest.request import resource_name

Raw = Mapping[str, Any]

PAGE = 500
PLAIN = "application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
SEND_SECONDS = 0.001  # until a request has been sent


@dataclass(frozen=True, slots=True)
class Page:
    items: Sequence[Raw]
    version: str  # resourceVersion of the whole list
    following: str  # continue token of the next page; empty after the last
    unreadable: Sequence[Raw] = ()  # metadata of the objects that are missing in the items

    @property
    def present(self) -> Iterator[Raw]:
        """All existing objects, including those that cannot be read."""
        return itertools.chain(self.items, self.unreadable)


@dataclass(frozen=True, slots=True)
class Listing:
    """One list to read."""

    api: Api
    path: str
    intake: Intake
    selector: str = ""
    is_metadata_enough: bool = False
    fields: str = ""  # field selector

    async def pages(self) -> AsyncGenerator[Page]:
        """The pages, each with the next one requested in advance. Raises ApiError; 410 if it took too long."""
        coming = asyncio.create_task(self._read(PAGE, ""))
        try:
            while True:
                page, limit = await coming
                if page.following:
                    coming = asyncio.create_task(self._read(min(PAGE, 2 * limit), page.following))
                    await asyncio.sleep(SEND_SECONDS)
                yield page
                if not page.following:
                    return
        finally:
            coming.cancel()

    async def _read(self, limit: int, token: str) -> tuple[Page, int]:
        """A page of at most `limit` objects, and the limit that was used in the end."""
        while True:
            try:
                return await self._ask(limit, token, METADATA_LIST if self.is_metadata_enough else PLAIN), limit
            except UnreadableError as error:
                if limit == 1:
                    return await self._leave_out(token, error), 1
                limit = max(1, limit // 4)

    async def _leave_out(self, token: str, error: UnreadableError) -> Page:
        """The page of the single object that cannot be read."""
        page = await self._ask(1, token, METADATA_LIST)
        for item in page.items:
            self.intake.skip(resource_name(self.path), name_of(item), "Unreadable", error.message)
        return replace(page, items=(), unreadable=page.items)

    async def _ask(self, limit: int, token: str, accept: str) -> Page:
        query = {"limit": str(limit)}
        if self.selector:
            query["labelSelector"] = self.selector
        if self.fields:
            query["fieldSelector"] = self.fields
        if token:
            query["continue"] = token
        raw = await self.api.request("GET", self.path, query=query, accept=accept)
        metadata = raw.get("metadata") or {}
        version, following = metadata.get("resourceVersion") or "", metadata.get("continue") or ""
        return Page(raw.get("items") or (), str(version), str(following))
