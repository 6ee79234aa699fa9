"""kopf: ElasticJobs are watched here, and every event only enters what was seen and wakes the job's loop.

There is one handler and it is `on.event`: it needs no finalizer, no annotation and no write. Everything that kopf would
do between events (retries, progress, peering) is the loop's or the Lease's business. The reasons are in docs/adr, 18.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf

from elasticjob_operator.api import names
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.intake import Intake

Credentials = Callable[[], Awaitable[kopf.ConnectionInfo]]


def build_registry(cache: Cache, intake: Intake, credentials: Credentials) -> kopf.OperatorRegistry:
    """A registry with our one handler, and the credentials that the rest of the operator uses."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await credentials()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def seen(event: Mapping[str, Any], **_: Any) -> None:  # kopf runs what is not async in threads
        raw = dict(event["object"])
        intake.take(names.PLURAL, raw, lambda: cache.apply_job(event.get("type"), raw))

    return registry


def _in_one_line(record: logging.LogRecord) -> bool:
    """kopf prints a traceback where the API server has answered a watch with an error."""
    record.exc_info = None
    return True


def _not_of_the_end(record: logging.LogRecord) -> bool:
    """kopf's watches complain with a traceback where the process ends in the middle of one."""
    return "closing of asynchronous generator" not in str(record.msg)


class _Patience:
    """kopf's pauses between tries: without an end, since its watches would end with them."""

    def __iter__(self) -> Iterator[float]:
        return (find_pause(failures, most=10.0) for failures in itertools.count(1))


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf compares every object with the last one it handled; we only want to be told, and the copies cost CPU."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is stored in the objects."""


def build_settings() -> kopf.OperatorSettings:
    """kopf's settings for a thin watch: quick to try again, silent, with nothing stored."""
    for name in ("orchestration", "running"):
        logging.getLogger(f"kopf._core.reactor.{name}").addFilter(_in_one_line)
    logging.getLogger("asyncio").addFilter(_not_of_the_end)
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # kopf's events would be written past the leader's right to write
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.scanning.disabled = True
    settings.watching.server_timeout = 240
    settings.watching.chunk_size = 5  # jobs may be large, and kopf decodes a page at once
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
