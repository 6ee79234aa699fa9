"""What the specs of jobs keep in memory: those of usual size as they are, the others in a room that all share.

The template of one job may take three megabytes, and a namespace has as many jobs as it likes. A job for which there is
no room waits, unless it has started: then the spec that it had before stays in force. After a restart the same jobs are
let in: those of which the status says that nothing waited find the room that they had, and the others come after them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import names, podtemplate
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.model.observe import Job, NoRoom
from elasticjob_operator.model.reading import Notice
from elasticjob_operator.shares import Berths

KEPT_BYTES: Final = 32 * 1024  # of the spec of a job, which is many times what most take ...
KEPT_JOBS: Final = 4096  # ... of so many of a namespace: what is larger, and what is more, shares ...
SMALL_BYTES: Final = 1024  # of the JSON of _SMALL in a change: so little does not wait for room ...
SMALL_PART_BYTES: Final = 1024  # ... and of memory, of a part of a template that is kept: a label or four
_CONTAINERS: Final = ("containers", "initContainers")
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


class JobRoom:
    """Who is let in. Call `leave` for a job that is gone."""

    def __init__(self) -> None:
        self._asked: dict[JobKey, object] = {}  # the specs that were measured
        self._berths = Berths(KEPT_BYTES, KEPT_JOBS, MOST_KEPT_BYTES)

    def let_in(self, job: Job, before: Job | None, *, is_first_list: bool) -> Job:
        """The job, without what there is no room for. `before`: what was kept of it, of an earlier version.

        `is_first_list`: most of what is read now was let in before the operator was restarted.
        """
        key = job.key
        if before is not None and job.asked is not None and job.asked is self._asked.get(key):
            return job
        self._berths.enter(key)
        size = _measure(job)
        if job.status.finished and not job.is_corrected and self._berths.is_shared(key, size):
            job, size = _without_template(job), 0
        was_in = job.status.start_time is not None
        had_all = _had_all(job)
        waits = is_first_list and not had_all and self._berths.is_shared(key, size)
        # Whoever has seen it start let it in then, and what is larger now asks for room as others do.
        was_out = before is None or before.no_room is not None or before.lacks_template
        is_back = (is_first_list and had_all) or (was_out and _was_in(job))
        if not waits and self._berths.put(key, size, again=is_back):
            self._asked[key] = job.asked
            return job
        no_room = NoRoom(size, job.manager)
        if before is not None and before.spec is not None and was_in and not before.lacks_template:
            return _with_spec_of(before, job, no_room)
        self._asked.pop(key, None)
        rest = _without_large_parts(job.spec) if was_in and job.spec is not None else None
        size = 0 if rest is None else _measure_spec(rest)
        if rest is not None and size <= KEPT_BYTES and self._berths.put(key, size, again=True):
            return _without_new_pods(job, rest, no_room)
        self._berths.clear(key)
        return replace(job, spec=None, asked=None, problems=(), awaited=None, notices=(), no_room=no_room)

    def has_room(self, job: Job) -> bool:
        """Whether a job that waits, or whose change does, would be let in now."""
        missing = job.no_room or job.late
        is_back = (job.no_room is not None or job.lacks_template) and _was_in(job)
        return missing is None or self._berths.has_room(job.key, missing.size, again=is_back)

    def leave(self, key: JobKey) -> None:
        self._asked.pop(key, None)
        self._berths.leave(key)


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
        notices=(Notice(NoRoom.REASON, f"{waits}: {no_room.message}"), *notices),  # the first one is the reason
    )


def _without_new_pods(job: Job, spec: api.Spec, no_room: NoRoom) -> Job:
    """A job that has started, and of which the spec is not known that it had: the pods that are there are looked after.

    Else nobody would hear of their end, and who suspends the job would wait for the memory of its template.
    """
    told = Notice(NoRoom.REASON, f"there are no new pods until there is room for the changed spec: {no_room.message}")
    notices = (told, *(notice for notice in job.notices if notice.reason != NoRoom.REASON))
    return replace(job, spec=spec, asked=None, awaited=None, late=no_room, lacks_template=True, notices=notices)


def _without_large_parts(spec: api.Spec) -> api.Spec:
    """The spec without what is large in its template, for which it keeps its digest. It may be large all the same.

    What pods hold of nodes and queues is known by this, how they end, and what their job keeps beside them, but for its
    PodGroup, which stays as it is.
    """
    _ = spec.template_hash, spec.shape  # those of the whole one are copied
    pod = {name: value for name, value in spec.template["spec"].items() if name not in _CONTAINERS and _is_small(value)}
    for name in _CONTAINERS:
        if name in spec.template["spec"]:
            pod[name] = [_shorten(one) for one in spec.template["spec"][name]]
    whole = spec.template.get("metadata") or {}
    metadata = {name: value for name, value in whole.items() if _is_small(value)}
    trainer = (whole.get("annotations") or {}).get(names.ANNOTATION_TRAINER)
    if trainer and "annotations" not in metadata:  # others in there are of no use without new pods
        metadata["annotations"] = {names.ANNOTATION_TRAINER: trainer}
    return spec.model_copy(update={"template": {"metadata": metadata, "spec": pod}})


def _measure_spec(spec: api.Spec) -> int:
    return count_bytes(spec.template, spec.model_dump(exclude={"template"}, exclude_none=True))


def _shorten(container: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in container.items() if name in ("name", "resources") or _is_small(value)}


def _is_small(value: object) -> bool:
    return count_bytes(value) <= SMALL_PART_BYTES


def _measure(job: Job) -> int:
    """What the template of a job shares with its written spec, which is nearly everything, is counted once.

    Of a job that waits for its template, the written spec is kept, and of one whose spec cannot be read, nothing is.
    """
    if job.awaited is not None:
        return count_bytes(job.awaited.spec)
    written, taken = job.asked.basis.written if job.asked is not None else None, job.status.template
    if taken is None or job.spec is None:
        return count_bytes(written)
    return count_bytes(written, job.spec.template, taken.spec)


def _had_all(job: Job) -> bool:
    """Whether all that it asks for was let in before, as its status tells: neither is new, nor had to wait."""
    is_seen = job.generation == job.status.observed_generation
    return is_seen and not any(_is_told(job, condition) for condition in ("Degraded", "Warning"))


def _was_in(job: Job) -> bool:
    """Whether a job that has started may be as large as it is."""
    return job.status.start_time is not None and not _is_told(job, "Warning")


def _is_told(job: Job, type: str) -> bool:
    """Whether the job, or a change of it (as a warning), waited for room when its status was written the last time."""
    condition = job.status.condition(type)
    return condition is not None and condition.status == "True" and condition.reason == NoRoom.REASON


def _without_template(job: Job) -> Job:
    """A job that has finished makes no pods; what is left of its spec says when it is deleted."""
    if job.spec is None:
        return replace(job, asked=None, awaited=None)
    pod: Mapping[str, Any] = {"containers": [{"name": podtemplate.trainer_container(job.spec.template)}]}
    policy = job.spec.elastic_policy.model_copy(update={"metrics": None})
    kept = {"run_policy": job.spec.run_policy, "elastic_policy": policy, "managed_by": job.spec.managed_by}
    spec = api.Spec.model_validate({"template": {"spec": pod}}).model_copy(update=kept)
    return replace(job, spec=spec, asked=None, awaited=None)
