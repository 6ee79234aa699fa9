"""Writes Kubernetes events for jobs in the background, with a rate limit per job."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable

from elasticjob_operator import text
from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan import event_rate
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.times import format_time

logger = logging.getLogger(__name__)

MAX_WAITING = 1000  # events that may wait to be written; further ones are dropped, of a namespace with many at first


class EventRecorder:
    """Records events of jobs."""

    def __init__(self, api: Api, reporter: str) -> None:
        self._api = api
        self._reporter = reporter
        self._filter = event_rate.SpamFilter()
        self._writing: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()  # events that are being written, by namespace
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by the UID of jobs with waiting events

    async def close(self) -> None:
        """Wait a moment for the last events to be written."""
        for timer in self._timers.values():
            timer.cancel()
        if self._writing:
            await asyncio.wait(self._writing, timeout=1.0)
        for task in self._writing:
            task.cancel()

    def record(self, job: Job, events: Iterable[Event], now: float) -> None:
        job = job.identity  # what waits may outlive it
        for event in events:
            told = self._filter.offer(job.namespace, job.uid, event, now)
            if told is not None:
                logger.info(
                    "%s/%s: %s: %s",
                    job.namespace,
                    job.name,
                    event.reason,
                    text.clean(event.message, event_rate.LONGEST),
                )
                self._write_later(job, told, now)
            elif job.uid not in self._timers:
                self._look_later(job)

    def _look_later(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        self._timers[job.uid] = loop.call_later(1 / event_rate.PER_SECOND, self._record_held, job)

    def _record_held(self, job: Job) -> None:
        del self._timers[job.uid]
        now = self._api.clock()
        told = self._filter.release(job.namespace, job.uid, now)
        if told is not None:
            self._write_later(job, told, now)
        if self._filter.is_holding(job.namespace, job.uid):
            self._look_later(job)

    def _write_later(self, job: Job, told: event_rate.Told, now: float) -> None:
        """A namespace gets as many places as it leaves free: half of them if it is alone, a third if there are two."""
        if self._waiting[job.namespace] >= MAX_WAITING - len(self._writing):
            return
        self._waiting[job.namespace] += 1
        task = asyncio.create_task(self._write(job, told, now))
        self._writing.add(task)
        task.add_done_callback(functools.partial(self._leave, job.namespace))

    def _leave(self, namespace: str, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        self._waiting[namespace] -= 1
        if not self._waiting[namespace]:
            del self._waiting[namespace]

    async def _write(self, job: Job, told: event_rate.Told, now: float) -> None:
        """Write one event. A failure is only logged."""
        key = f"{job.uid}/{told.event.reason}/{told.message}/{now}"
        body = manifests.build_event(
            job,
            told.event.reason,
            text.clean(told.message, event_rate.LONGEST),
            warning=told.event.warning,
            count=told.count,
            times=(format_time(told.first), format_time(now)),
            name=names.event_name(job.name, hashlib.sha256(key.encode()).hexdigest()),
            reporter=self._reporter,
        )
        path = path_of("v1", "events", job.namespace)
        try:
            await self._api.request("POST", path, body, urgency=Urgency.LATER, job=job.name)
        except ApiError as error:
            logger.info("%s/%s: could not write an event: %s", job.namespace, job.name, error)
