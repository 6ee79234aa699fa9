"""What the specs of jobs keep in memory: those of usual size as they are, the others in a room that all share.

The template of one job may take three megabytes, and a namespace has as many jobs as it likes. A job for which there is
no room waits, unless it has started: then the spec that it had before stays in force. After a restart the same jobs are
let in: those that have started, and those that did not wait, find the room that they had.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import podtemplate
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.model.observe import Job, NoRoom
from elasticjob_operator.model.reading import Notice
from elasticjob_operator.shares import Room

KEPT_BYTES: Final = 32 * 1024  # of the spec of a job, which is many times what most take ...
KEPT_JOBS: Final = 4096  # ... of so many of a namespace: what is larger, and what is more, shares ...
SMALL_BYTES: Final = 1024  # of the JSON of _SMALL in a change: so little does not wait for room
_SMALL: Final = ("replicas", "elastic_policy", "run_policy", "scaling")  # which are consistent with each other
MOST_KEPT_BYTES: Final = 96 * 2**20  # ... so many bytes of all jobs, of which one namespace gets half


def count_bytes(*values: object) -> int:
    """The memory that values from JSON take, level by level."""
    total, level = 0, list(values)
    while level:
        total += sum(map(sys.getsizeof, level))
        objects = [one for one in level if isinstance(one, dict)]
        lists = [one for one in level if isinstance(one, list)]
        total += sum(map(sys.getsizeof, itertools.chain.from_iterable(objects)))
        level = [*itertools.chain.from_iterable(map(dict.values, objects)), *itertools.chain.from_iterable(lists)]
    return total


@dataclass(slots=True)
class _Place:
    """What is kept of a job, and the room that it takes."""

    is_free: bool = False  # one of those of which only what is large takes room
    asked: object = None  # the spec that was measured
    taken: int = 0


class JobRoom:
    """Who is let in. Call `leave` for a job that is gone."""

    def __init__(self) -> None:
        self._places: dict[JobKey, _Place] = {}
        self._free: Counter[str] = Counter()  # jobs that are `is_free`, by namespace
        self._room = Room(MOST_KEPT_BYTES)  # by namespace

    def let_in(self, job: Job, before: Job | None, *, is_first_list: bool) -> Job:
        """The job, without what there is no room for. `before`: what was kept of it, of an earlier version.

        `is_first_list`: most of what is read now was let in before the operator was restarted.
        """
        namespace, place = job.namespace, self._places.setdefault(job.key, _Place())
        if before is not None and job.asked is not None and job.asked is place.asked:
            return job
        if not place.is_free and self._free[namespace] < KEPT_JOBS:
            place.is_free = True
            self._free[namespace] += 1
        size = _measure(job)
        wanted = max(0, size - KEPT_BYTES) if place.is_free else size
        if wanted and job.status.finished and not job.is_corrected:
            job, wanted = _without_template(job), 0
        was_in, told = job.status.start_time is not None, _is_told(job)
        self._room.leave(namespace, place.taken)
        if not wanted or (
            self._room.enter_again(namespace, wanted)
            if was_in or (is_first_list and not told)
            else not is_first_list and self._room.enter(namespace, wanted)
        ):
            place.asked, place.taken = job.asked, wanted
            return job
        no_room = NoRoom(size, _find_manager(job))
        if before is not None and before.spec is not None and was_in:
            self._room.enter_again(namespace, place.taken)
            return _with_spec_of(before, job, no_room)
        place.asked, place.taken = None, 0
        return replace(job, spec=None, asked=None, problems=(), awaited=None, notices=(), no_room=no_room)

    def has_room(self, job: Job) -> bool:
        """Whether a job that waits, or whose change does, would be let in now."""
        missing, place = job.no_room or job.late, self._places.get(job.key)
        if missing is None or place is None:
            return True
        is_free = place.is_free or self._free[job.namespace] < KEPT_JOBS
        wanted = max(0, missing.size - KEPT_BYTES) if is_free else missing.size
        if job.status.start_time is None:
            return not wanted or self._room.has_room(job.namespace, wanted)
        return not wanted or self._room.has_room_again(job.namespace, wanted - place.taken)

    def leave(self, key: JobKey) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        self._room.leave(key[0], place.taken)
        self._free[key[0]] -= place.is_free
        if not self._free[key[0]]:
            del self._free[key[0]]


def _with_spec_of(before: Job, job: Job, no_room: NoRoom) -> Job:
    """Whoever scales or suspends it does not wait for the memory of a template."""
    notices = tuple(notice for notice in before.notices if notice.reason != NoRoom.REASON)
    spec, own, waits = before.spec, before.own_replicas, "the change of spec waits"
    if spec is not None and job.spec is not None and not job.problems:
        small = {name: getattr(job.spec, name) for name in _SMALL}
        if len(job.spec.model_dump_json(include={*_SMALL}, exclude_none=True)) <= SMALL_BYTES:
            spec, own = spec.model_copy(update=small), job.own_replicas
            waits += ", but for spec.replicas, elasticPolicy, runPolicy and scaling"
    return replace(
        job,
        spec=spec,
        asked=before.asked,
        problems=before.problems,
        awaited=None,
        own_replicas=own,
        late=no_room,
        notices=(*notices, Notice(NoRoom.REASON, f"{waits}: {no_room.message}")),
    )


def _measure(job: Job) -> int:
    """What the template of a job shares with its written spec, which is nearly everything, is counted once."""
    written, taken = job.asked.basis.written if job.asked is not None else None, job.status.template
    if taken is None or job.spec is None:
        return count_bytes(written)
    return count_bytes(written, job.spec.template, taken.spec)


def _is_told(job: Job) -> bool:
    """Whether the job waited for room when its status was written the last time."""
    degraded = job.status.condition("Degraded")
    return degraded is not None and degraded.status == "True" and degraded.reason == NoRoom.REASON


def _find_manager(job: Job) -> str:
    if job.spec is not None:
        return job.spec.manager
    return job.awaited.manager if job.awaited is not None else ""


def _without_template(job: Job) -> Job:
    """A job that has finished makes no pods; what is left of its spec says when it is deleted."""
    if job.spec is None:
        return replace(job, asked=None, awaited=None)
    pod: Mapping[str, Any] = {"containers": [{"name": podtemplate.trainer_container(job.spec.template)}]}
    policy = job.spec.elastic_policy.model_copy(update={"metrics": None})
    kept = {"run_policy": job.spec.run_policy, "elastic_policy": policy, "managed_by": job.spec.managed_by}
    spec = api.Spec.model_validate({"template": {"spec": pod}}).model_copy(update=kept)
    return replace(job, spec=spec, asked=None, awaited=None)
