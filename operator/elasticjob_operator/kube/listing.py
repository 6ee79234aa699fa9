"""Reads long lists page by page, even if objects are large or invalid.

A page that is too large or cannot be decoded is requested again in smaller pieces, until the responsible object is
alone; it is skipped by name, for which the beginning of its metadata is enough. So no object hides the others. A page
that does not come in time is requested in smaller pieces, too: a busy server may be slow to write large objects. Of an
object of too many values, its outline is passed on: it has no labels and no owner, but what it holds. Objects
are passed on one by one as they are decoded, while the server prepares the next page: the objects of a large cluster
are never in memory together. Of several lists, one decodes a large page at a time.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake, name_of
from elasticjob_operator.rest.errors import ApiError, UnreadableError
from elasticjob_operator.rest.json_stream import TOO_MANY, TooManyError, outline
from elasticjob_operator.rest.request import resource_name

Raw = Mapping[str, Any]
Take = Callable[[Raw], object]

PAGE = 500
PLAIN = "application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
IDENTITY = ("namespace", "name", "uid", "resourceVersion")
SEND_SECONDS = 0.001  # until a request has been sent
# The first of these members, which the API server writes after what identifies an object.
_SIZED = re.compile(rb',"(?:labels|annotations|ownerReferences|finalizers|managedFields)":[{\[]')


@dataclass(frozen=True, slots=True)
class Listed:
    """What exists at one version."""

    present: list[str]  # the `key` of every object, including those that cannot be read
    version: str  # resourceVersion of the list


@dataclass(slots=True)
class _Page:
    """A page that is requested, and what is known of it so far."""

    limit: int
    token: str
    coming: asyncio.Task[bytearray]
    present: list[Raw] = field(default_factory=list)  # the IDENTITY of each object
    version: str = ""
    next: _Page | None = None

    def stop(self) -> None:
        self.coming.cancel()
        if self.next is not None:
            self.next.stop()


@dataclass(frozen=True, slots=True)
class Listing:
    """One list to read."""

    api: Api
    path: str
    intake: Intake
    selector: str = ""
    is_metadata_enough: bool = False
    fields: str = ""  # field selector
    key: str = "uid"  # what is kept of the metadata of each object; "": nothing. Tenants have as many as they like

    async def read(self, take: Take) -> Listed:
        """Call `take` once with each object that can be read; return what exists.

        `take` may get two versions of an object that changes while a page is read again.
        Raises ApiError; 410 if it took too long.
        """
        present: list[str] = []
        taken: set[tuple[str, ...]] = set()  # from pages that could not be read to their end
        page, most = self._request(PAGE, ""), PAGE
        try:
            while True:
                try:
                    await self._decode(page, take, taken, most)
                except ApiError as error:
                    is_late = page.limit > 1 and _is_slow(error.__cause__)
                    if not (is_late or isinstance(error, UnreadableError)):
                        raise
                    page.stop()
                    most = max(1, page.limit // 4) if is_late else most
                    taken.update(_identify(one) for one in page.present)
                    if page.limit > 1:
                        page = self._request(max(1, page.limit // 4), page.token)
                        continue
                    page = self._request(1, page.token, METADATA_LIST)
                    await self._decode(page, functools.partial(self._skip, error.message), frozenset(), most, cut=True)
                if self.key:
                    present += [str(one.get(self.key, "")) for one in page.present]
                if page.next is None:
                    return Listed(present, page.version)
                page = page.next
        finally:
            page.stop()

    def _request(self, limit: int, token: str, accept: str = "") -> _Page:
        query = {"limit": str(limit)}
        if self.selector:
            query["labelSelector"] = self.selector
        if self.fields:
            query["fieldSelector"] = self.fields
        if token:
            query["continue"] = token
        accept = accept or (METADATA_LIST if self.is_metadata_enough else PLAIN)
        return _Page(limit, token, asyncio.create_task(self.api.fetch(self.path, query, accept)))

    async def _decode(
        self, page: _Page, take: Take, taken: Collection[tuple[str, ...]], most: int, *, cut: bool = False
    ) -> None:
        """Take the other objects of a page, and request the next one, of at most so many, once its token is known.

        `cut`: of its only object, what comes before the parts of its metadata that may have any size or depth.
        """

        def take_one(item: Raw) -> None:
            one = {k: v for k, v in item["metadata"].items() if k in IDENTITY}
            page.present.append(one)
            if not taken or _identify(one) not in taken:
                take(item)

        async def read_head(metadata: Raw | None) -> None:
            page.version = str((metadata or {}).get("resourceVersion") or "")
            following = (metadata or {}).get("continue")
            if following:
                page.next = self._request(min(most, 2 * page.limit), following)
                await asyncio.sleep(SEND_SECONDS)

        data = await page.coming
        await self.api.decode_page(_cut(data) if cut else data, self.path, take_one, read_head, self._outline)

    def _outline(self, text: str) -> Raw:
        found = outline(text)
        if found is None:
            raise TooManyError(text)
        self._skip(TOO_MANY, found)
        return found

    def _skip(self, why: str, item: Raw) -> None:
        self.intake.skip(resource_name(self.path), name_of(item), "Unreadable", why)


def _is_slow(cause: BaseException | None) -> bool:
    """Whether a smaller page may come in time. A server that takes no connection is away."""
    return isinstance(cause, TimeoutError) and not isinstance(cause, aiohttp.ConnectionTimeoutError)


def _cut(page: bytearray) -> bytearray:
    found = _SIZED.search(page, max(0, page.find(b'"items":[')))
    return page[: found.start()] + b"}}]}" if found else page


def _identify(one: Raw) -> tuple[str, ...]:
    return tuple(str(one.get(key, "")) for key in IDENTITY)
