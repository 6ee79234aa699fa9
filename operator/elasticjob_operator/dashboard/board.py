"""All jobs as the dashboard knows them: the latest state, the samples since it started, and a row of HTML for each.

A change renders one row. A viewer gets a page of rows, and then only those that differ from what it has.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from typing import Final

from elasticjob_operator.client import Change, Job
from elasticjob_operator.client.samples import Sample, is_news, take_sample
from elasticjob_operator.dashboard.listpage import Row, View, build_row, select

_MOST_SAMPLES: Final = 60_000  # of all jobs: about 40 MB of small ones
_LEAST_SAMPLES: Final = 60  # of each job
_ENOUGH_SAMPLES: Final = 1000


class Board:
    def __init__(self) -> None:
        self.known: dict[str, Job] = {}  # by UID; the watch keeps it
        self.problem = ""  # why the jobs may be out of date
        self.version = 0
        self.is_complete = False  # whether all jobs were read once
        self._rows: dict[str, Row] = {}  # by UID
        self._order: list[tuple[str, str, str]] = []  # (namespace, name, UID), sorted
        self._samples: dict[str, list[Sample]] = {}
        self._changed = asyncio.Event()

    def apply(self, change: Change, now: float) -> None:
        job = change.job
        before = self._rows.pop(job.uid, None)
        if before is not None:
            self._order.pop(bisect.bisect_left(self._order, before.order))
        if change.type == "DELETED":
            self._samples.pop(job.uid, None)
        else:
            row = self._rows[job.uid] = build_row(job, now)
            bisect.insort(self._order, row.order)
            self._keep_sample(job, now)
        self._tell()

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
        sample = take_sample(job, now, kept[-1] if kept else None)
        if is_news(kept[-1] if kept else None, sample):
            kept.append(sample)
        limit = min(_ENOUGH_SAMPLES, max(_LEAST_SAMPLES, _MOST_SAMPLES // max(1, len(self._rows))))
        if len(kept) > limit:
            self._samples[job.uid] = thin(kept, limit)


def thin(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """Drop samples until at most `limit` are left: every second one between changes of the world, then the oldest."""
    kept = list(samples)
    while len(kept) > limit:
        fewer = [
            sample
            for i, sample in enumerate(kept)
            if i % 2 == 0 or i == len(kept) - 1 or _is_turn(kept[i - 1], sample) or _is_turn(sample, kept[i + 1])
        ]
        kept = fewer if len(fewer) < len(kept) else kept[-limit:]
    return kept


def _is_turn(before: Sample, after: Sample) -> bool:
    return bool(after.members) or (before.generation, before.training, before.phase, before.world_size) != (
        (after.generation, after.training, after.phase, after.world_size)
    )
