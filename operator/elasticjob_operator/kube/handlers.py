"""kopf watches ElasticJobs; every event only updates the cache and wakes the job's loop.

The only handler is `on.event`, which needs no finalizer, annotation or write. The loop or the Lease replaces what kopf
would do between events (retries, progress, peering). The reasons are in docs/adr, 18.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf

from elasticjob_operator.api import names
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.kube import kopf_session
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.garbage import Garbage
from elasticjob_operator.kube.intake import Intake

_LET_GO_SECONDS = 0.1  # by then kopf is through with an event
# No object has it. kopf removes its own finalizer, in every replica, wherever somebody has written it.
NO_FINALIZER = ""

Credentials = Callable[[], Awaitable[kopf.AiohttpSession]]


def build_registry(
    cache: Cache, intake: Intake, credentials: Credentials, on_listed: Callable[[], None]
) -> kopf.OperatorRegistry:
    """A registry with our handler, and the credentials that the rest of the operator uses.

    `on_listed` is called for each job that kopf reports from a list, and not from a watch.
    """
    registry = kopf.OperatorRegistry()
    garbage = Garbage()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await credentials()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def seen(event: Mapping[str, Any], **_: Any) -> None:  # async because kopf runs other functions in threads
        raw = dict(event["object"])
        if event.get("type") is None:
            on_listed()
        intake.take(names.PLURAL, raw, lambda: cache.apply_job(event.get("type"), raw))
        asyncio.get_running_loop().call_later(_LET_GO_SECONDS, let_go, event["object"])

    def let_go(item: Any) -> None:
        """Empty the object of an event, which kopf is through with, and still holds for a while or in a cycle."""
        for name in ("spec", "status"):
            item.pop(name, None)
        for name in ("managedFields", "annotations", "labels"):
            item["metadata"].pop(name, None)
        garbage.look()

    return registry


def _in_one_line(record: logging.LogRecord) -> bool:
    """A log filter: kopf prints a traceback when the API server answers a watch with an error."""
    record.exc_info = None
    return True


def _not_of_the_end(record: logging.LogRecord) -> bool:
    """A log filter: kopf's watches log a traceback when the process ends."""
    return "closing of asynchronous generator" not in str(record.msg)


class _Patience:
    """kopf's retry delays, without an end, because its watches would end with them."""

    def __iter__(self) -> Iterator[float]:
        return (find_pause(failures, most=10.0) for failures in itertools.count(1))


class _NoDiffs(kopf.DiffBaseStorage):
    """Disables diffs: kopf compares every object with the last one it handled, and the copies cost CPU time."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is stored in the objects."""


def build_settings() -> kopf.OperatorSettings:
    """kopf's settings for a plain watch: quick retries, no posted events, nothing stored in objects."""
    for name in ("orchestration", "running"):
        logging.getLogger(f"kopf._core.reactor.{name}").addFilter(_in_one_line)
    logging.getLogger("asyncio").addFilter(_not_of_the_end)
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # kopf would write events without the leadership check
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.finalizer = NO_FINALIZER
    settings.scanning.disabled = True
    settings.watching.server_timeout = 240
    settings.watching.chunk_size = kopf_session.FEWEST  # until it is known how large they are
    settings.watching.client_timeout = 260
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 0.2
    settings.watching.inactivity_timeout = 90
    settings.queueing.error_delays = _Patience()
    settings.queueing.idle_timeout = 1.0
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Patience()
    return settings
