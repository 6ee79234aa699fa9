"""All jobs as the dashboard knows them: the latest state, the samples since it started, and a row of HTML for each.

A change renders one row. A viewer gets a page of rows, and then only those that differ from what it has. Statuses of
jobs without pods share a room, as in the operator: of one without room little is kept, and who looks at the job reads
the rest.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from typing import Final

from elasticjob_operator.client import Change, Job
from elasticjob_operator.client.model import brief
from elasticjob_operator.client.samples import Sample, is_news, take_sample, thin, weigh
from elasticjob_operator.dashboard.listpage import Row, View, build_row, select
from elasticjob_operator.kube.status_room import KEPT_BYTES, KEPT_JOBS, MOST_KEPT_BYTES
from elasticjob_operator.shares import Berths

_MOST: Final = 60_000  # weight of the samples of all jobs: about 40 MB
_ENOUGH: Final = 1000  # weight of the samples of one job
_FACTOR: Final = 3  # what a status takes for each byte of its JSON (measured: 2.4)


class Board:
    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.known: dict[str, Job] = {}  # by UID; the watch keeps it
        self.problem = ""  # why the jobs may be out of date
        self.version = 0
        self.is_complete = False  # whether all jobs were read once
        self._rows: dict[str, Row] = {}  # by UID
        self._order: list[tuple[str, str, str]] = []  # (namespace, name, UID), sorted
        self._samples: dict[str, list[Sample]] = {}
        self._weights: dict[str, int] = {}  # of the samples of each job
        self._weight = 0  # of all
        self._changed = asyncio.Event()
        self._room = Berths(KEPT_BYTES, KEPT_JOBS, MOST_KEPT_BYTES)

    def apply(self, change: Change, now: float) -> None:
        job = self._shorten(change)
        before = self._rows.pop(job.uid, None)
        if before is not None:
            self._order.pop(bisect.bisect_left(self._order, before.order))
        if change.type == "DELETED":
            self._samples.pop(job.uid, None)
            self._weight -= self._weights.pop(job.uid, 0)
        else:
            row = self._rows[job.uid] = build_row(job, now)
            bisect.insort(self._order, row.order)
            self._keep_sample(job, now)
        self._tell()

    def _shorten(self, change: Change) -> Job:
        """The job as it is kept."""
        job = change.job
        key = job.namespace, job.name
        if change.type == "DELETED" or job.status.replicas:
            self._room.leave(key)
        elif not self._room.put(key, _FACTOR * len(job.status.model_dump_json(exclude_none=True))):
            self._room.leave(key)
            job = self.known[job.uid] = brief(job)
        return job

    def set_listed(self) -> None:
        """All jobs were read."""
        self.is_complete = True
        self.set_problem("")

    def set_problem(self, problem: str) -> None:
        self.problem = problem
        self._tell()

    def find(self, namespace: str, name: str) -> Job | None:
        at = bisect.bisect_left(self._order, (namespace, name, ""))
        if at < len(self._order) and self._order[at][:2] == (namespace, name):
            return self.known.get(self._order[at][2])
        return None

    def samples(self, uid: str) -> Sequence[Sample]:
        return self._samples.get(uid, ())

    def in_pool(self, pool: str) -> list[Job]:
        """The jobs that share a pool, by name."""
        jobs = (self.known.get(uid) for _, _, uid in self._order)
        return [job for job in jobs if job and job.status.scaling is not None and job.status.scaling.pool == pool]

    def view(self, query: str, page: int) -> View:
        rows = [self._rows[uid] for _, _, uid in self._order]
        return select(rows, query, page)

    async def wait(self, version: int, timeout: float) -> int:
        """The version, once it differs from this one or the seconds are over."""
        if self.version == version:
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.version

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep_sample(self, job: Job, now: float) -> None:
        kept = self._samples.setdefault(job.uid, [])
        before = kept[-1] if kept else None
        sample = take_sample(job, now, before)
        if not is_news(before, sample):
            return
        kept.append(sample)
        self._count(job.uid, self._weights.get(job.uid, 0) + weigh(sample))
        share = self._most // max(1, len(self._rows))
        if self._weights[job.uid] > min(_ENOUGH, share):
            self._thin(job.uid, min(_ENOUGH, share))
        if self._weight > max(self._most, 2 * len(self._samples)):  # there are more jobs by now
            for uid in self._samples:
                self._thin(uid, share * 3 // 4)

    def _thin(self, uid: str, limit: int) -> None:
        kept = self._samples[uid] = thin(self._samples[uid], limit)
        self._count(uid, sum(map(weigh, kept)))

    def _count(self, uid: str, weight: int) -> None:
        self._weight += weight - self._weights.get(uid, 0)
        self._weights[uid] = weight
