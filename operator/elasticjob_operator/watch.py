"""A watch that stays in step with the API server: list, follow, and begin anew when that breaks off.

kopf watches without selectors, which in a big cluster means every pod of everybody; this one asks for the job's
objects only. It promises to call `apply` for every object that exists and for each event, and `replace` with the
metadata of all that exist, once in the beginning and after every gap: what is not among them is gone. What it tells may
be old, repeated or late, never wrong about one object at one version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from elasticjob_operator.kube import Api, ApiError

logger = logging.getLogger(__name__)

Raw = Mapping[str, Any]
PAGE = "500"
IDENTITY = ("namespace", "name", "uid", "resourceVersion")
SEND_SECONDS = 0.001  # for a request to be on its way
SERVER_SECONDS = 240  # a watch is renewed this often, ± 20 %
IDLE_SECONDS = 90.0  # bookmarks come every minute: longer silence means a dead connection


class Watch:
    """One resource, followed."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        replace: Callable[[list[Raw]], None],
        apply: Callable[[str, Raw], None],
        selector: str = "",
        required: bool = True,
    ) -> None:
        self._api = api
        self._path = path
        self._replace = replace
        self._apply = apply
        self._selector = selector
        self._required = required
        self.synced = asyncio.Event()
        self.forbidden = False

    async def run(self) -> None:
        """Follows for ever; ends only where the resource may not be seen and is not required."""
        version = ""
        failures = 0
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                version = await self._follow(version)
                failures = 0
            except ApiError as error:
                if error.status in (403, 404) and not self._required:
                    logger.warning("%s cannot be watched (%s); going on without", self._path, error.reason)
                    self.forbidden = True
                    self.synced.set()
                    return
                if error.status == 410:
                    version = ""
                    continue
                failures += 1
                version = "" if error.status else version
                await self._back_off(error, failures)

    async def _back_off(self, error: ApiError, failures: int) -> None:
        delay = error.retry_after or min(30.0, 0.1 * 2.0 ** min(failures, 12))
        level = logging.WARNING if failures > 1 else logging.INFO
        logger.log(level, "watch of %s: %s; again in %.1f s", self._path, error, delay)
        await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load

    async def _list(self) -> str:
        """Told page by page, so that the whole objects of a big cluster never lie in memory together."""
        listed: list[Raw] = []
        version = ""
        async with contextlib.aclosing(self._pages()) as pages:
            async for page in pages:
                for item in page.get("items") or ():
                    self._apply("ADDED", item)
                    listed.append({"metadata": {k: v for k, v in item["metadata"].items() if k in IDENTITY}})
                version = str((page.get("metadata") or {}).get("resourceVersion", ""))
        self._replace(listed)
        return version

    async def _pages(self) -> AsyncGenerator[Raw]:
        """While one page is looked at, the server works on the next."""
        query = {"limit": PAGE, **({"labelSelector": self._selector} if self._selector else {})}
        coming = asyncio.create_task(self._api.request("GET", self._path, query=query))
        try:
            while True:
                page = await coming
                query["continue"] = (page.get("metadata") or {}).get("continue") or ""
                if query["continue"]:
                    coming = asyncio.create_task(self._api.request("GET", self._path, query=dict(query)))
                    await asyncio.sleep(SEND_SECONDS)
                yield page
                if not query["continue"]:
                    return
        finally:
            coming.cancel()

    async def _follow(self, version: str) -> str:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(SERVER_SECONDS * random.uniform(0.8, 1.2))),  # noqa: S311
            **({"labelSelector": self._selector} if self._selector else {}),
        }
        async for event in self._api.stream(self._path, query, IDLE_SECONDS):
            kind, item = event.get("type", ""), event.get("object") or {}
            if kind == "ERROR":
                raise ApiError(int(item.get("code", 500)), str(item.get("reason", "")), str(item.get("message", "")))
            version = (item.get("metadata") or {}).get("resourceVersion") or version
            if kind != "BOOKMARK":
                self._apply(kind, item)
        return version
