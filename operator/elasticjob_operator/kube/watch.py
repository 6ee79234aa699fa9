"""A watch that stays in sync with the API server: list, watch, and start over when the watch breaks.

It requests only the objects of its selector, and only their metadata if that is enough. It calls `apply` for every
existing object and for each event, and `replace` with the UIDs (or names) of all existing objects and the version of
that list, at the start and after every gap: objects that are not among them were deleted, except for newer ones.
Reports may be outdated, repeated or late, but are never wrong about one object at one version. An object for which
`apply` raises is skipped with a warning; of one that cannot be read, `apply` gets the outline, without labels and
owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake, name_of
from elasticjob_operator.kube.listing import Listing
from elasticjob_operator.rest.errors import ApiError, decode_watch_error
from elasticjob_operator.rest.json_stream import WHY, Unreadable
from elasticjob_operator.rest.request import METADATA_ONLY, resource_name

logger = logging.getLogger(__name__)

Raw = Mapping[str, Any]
SERVER_SECONDS = 240  # interval at which a watch is renewed, ± 20 %
# There is a bookmark each minute. A longer silence may mean a dead connection, but not always: if a resource has not
# changed since the API server started, there are no bookmarks either. So the end of a silent watch is not logged.
IDLE_SECONDS = 65.0
HEALTHY_SECONDS = 10.0
BRINGS_SECONDS = 2.0  # a watch that is open for so long has brought what was waiting for it
ENDED = "it ended at once"


def count_failures(before: int, failed: bool, seconds: float) -> int:
    """Consecutive failures, after an attempt that lasted `seconds`. An attempt that ends at once is a failure."""
    if seconds >= HEALTHY_SECONDS:
        before = 0
    return before + 1 if failed or seconds < 1.0 else 0


class Watch:
    """Follows one resource."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        replace: Callable[[list[str], str], Awaitable[None]],
        apply: Callable[[str, Raw], None],
        selector: str = "",
        required: bool = True,
        is_metadata_enough: bool = False,
        intake: Intake | None = None,
        key: str = "uid",
    ) -> None:
        """`key`: what `replace` gets of the metadata of each object."""
        self._api = api
        self.path = path
        self._replace = replace
        self._apply = apply
        self._selector = selector
        self._required = required
        self._intake = intake or Intake()
        self._kind = resource_name(path)
        self._accept = METADATA_ONLY if is_metadata_enough else "application/json"
        self._listing = Listing(api, path, self._intake, selector, is_metadata_enough, key=key)
        self._version = ""
        self.synced = asyncio.Event()
        self.forbidden = False
        self._failing: tuple[float, str] | None = None
        self._opened: float | None = None  # when (monotonic) the one that is open now was answered

    @property
    def failing(self) -> tuple[float, str] | None:
        """Since when (monotonic) no watch has brought anything or stayed open, and the last error; None if it is well.

        That it was answered proves nothing: something on the way may break each of them at its first event.
        """
        stays = self._opened is not None and time.monotonic() - self._opened >= BRINGS_SECONDS
        return None if stays else self._failing

    async def run(self) -> None:
        """Follow for ever; returns only if access is forbidden and the resource is optional."""
        failures = 0
        while True:
            error: ApiError | None = None
            began = time.monotonic()
            try:
                if not self._version:
                    self._version = await self._list()
                    self.synced.set()
                await self._follow()
            except ApiError as caught:
                error = caught
            if error is not None and error.status in (403, 404) and not self._required:
                logger.warning("cannot watch %s (%s); continuing without it", self.path, error.reason)
                self.forbidden = True
                self.synced.set()
                return
            self._failing, self._opened = self.failing, None
            if error is not None and error.status:
                self._version = ""
            failures = count_failures(failures, error is not None, time.monotonic() - began)
            if failures:
                self._failing = (self._failing[0] if self._failing else time.monotonic(), str(error or ENDED))
                await self._back_off(error, failures)

    async def _back_off(self, error: ApiError | None, failures: int) -> None:
        pause = spread(find_pause(failures, asked=error.retry_after if error is not None else None))
        level = logging.DEBUG if error is None else logging.WARNING if failures > 1 else logging.INFO
        logger.log(level, "watch of %s: %s; retrying in %.1f s", self.path, error or ENDED, pause)
        await asyncio.sleep(pause)

    async def _list(self) -> str:
        """Apply the list; return its resource version."""
        listed = await self._listing.read(lambda item: self._enter("ADDED", item))
        await self._replace(listed.present, listed.version)
        return listed.version

    async def _follow(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(SERVER_SECONDS * random.uniform(0.8, 1.2))),  # noqa: S311
            **({"labelSelector": self._selector} if self._selector else {}),
        }
        stream = self._api.stream(self.path, query, IDLE_SECONDS, self._accept, opened=self._note_opened)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                self._failing = None
                if isinstance(event, Unreadable):
                    self._intake.skip(self._kind, event.name, "Unreadable", f"watch of {self.path}: {event.why}")
                    continue
                kind, item = event.get("type", ""), event.get("object") or {}
                if kind == "ERROR":
                    raise decode_watch_error(item)
                if why := event.get(WHY):
                    self._intake.skip(self._kind, name_of(item), "Unreadable", f"watch of {self.path}: {why}")
                if kind != "BOOKMARK":
                    self._enter(kind, item)
                self._version = (item.get("metadata") or {}).get("resourceVersion") or self._version

    def _note_opened(self) -> None:
        self._opened = time.monotonic()

    def _enter(self, kind: str, item: Raw) -> None:
        self._intake.take(self._kind, item, lambda: self._apply(kind, item))
