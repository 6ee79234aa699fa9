"""How the client interprets responses of the API server, independent of any connection. Pure."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.client import errors
from elasticjob_operator.client.history import SIZE_REASONS
from elasticjob_operator.client.model import Change, Happening, Job, Pod, cut_event, whole
from elasticjob_operator.rest.errors import decode_watch_error
from elasticjob_operator.templates import taking

MOST_EVENTS: Final = 2000  # of a job that are kept, and as many of its pods
MOST_SIZES: Final = 20_000  # events of all jobs of a namespace that tell a size
MOST_SIZE_MESSAGE: Final = 256  # characters, of which the first tell it


def is_met(job: Job, condition: str) -> bool:
    """Whether the condition is True. Raises JobFailedError if the job ended and can no longer meet it."""
    wanted = condition.lower()
    if wanted == "finished":
        return job.status.finished
    if any(c.type.lower() == wanted and c.status == "True" for c in job.status.conditions):
        return True
    failed = job.status.condition("Failed")
    if failed is not None and failed.status == "True":
        raise errors.JobFailedError(f"job {job.name} failed: {failed.reason}: {failed.message}")
    if job.status.is_true("Complete") and wanted in ("running", "suspended", "failed", "degraded"):
        raise errors.JobFailedError(f"job {job.name} is complete: it will not become {condition} any more")
    return False


def choose_pods(job: Job, pods: list[Pod], rank: int, *, patient: bool) -> list[Pod]:
    """The pod that runs a rank; without a world, the pod of that index. Raises NotFoundError if there is none."""
    if job.members:
        wanted = job.pod_of_rank(rank)
        chosen = [p for p in pods if p.name == wanted]
        known = max(r.stop for r in job.rank_ranges().values()) - 1
        problem = f"ranks 0 to {known}" if wanted is None else f"no pod {wanted} any more"
    else:
        chosen = [p for p in pods if p.index == rank]
        problem = "no world yet"
    if not chosen and not patient:
        raise errors.NotFoundError(f"rank {rank} of {job.name}: the job has {problem}")
    return chosen


def parse_change(line: str, keep: Callable[[Job], Job] = whole) -> Change | None:
    """Parse one line of a watch, and `keep` of its job; None if it is not a change of a job. Raises ClientError if
    the server ended the watch.
    """
    raw = json.loads(line) if line.strip() else {}
    type, item = raw.get("type"), raw.get("object") or {}
    if type == "ERROR":
        raise errors.explain(decode_watch_error(item), "watch jobs")
    if type not in ("ADDED", "MODIFIED", "DELETED"):
        return None
    return Change(type, keep(Job.parse(item)))


def read_job(raw: dict[str, Any], seen: Mapping[str, Job], keep: Callable[[Job], Job] = whole) -> Job:
    """What is kept of a job in a new list: the one that was seen (by UID), unless it has changed since."""
    before = seen.get(str((raw.get("metadata") or {}).get("uid", "")))
    if before is not None and version_of(before.raw) == version_of(raw):
        return before
    return keep(Job.parse(raw))


def find_differences(seen: dict[str, Job], found: Iterable[Job]) -> list[Change]:
    """The changes of a new list relative to `seen` (by UID), which is updated. Jobs that are gone were deleted."""
    changes: list[Change] = []
    left = dict(seen)
    for job in found:
        before = left.pop(job.uid, None)
        if before is not job:
            changes.append(Change("ADDED" if before is None else "MODIFIED", job))
    changes = [Change("DELETED", job) for job in left.values()] + changes
    for change in changes:
        apply_change(seen, change)
    return changes


def version_of(raw: Mapping[str, Any]) -> str:
    return str((raw.get("metadata") or {}).get("resourceVersion"))


def apply_change(seen: dict[str, Job], change: Change) -> None:
    if change.type == "DELETED":
        seen.pop(change.job.uid, None)
    else:
        seen[change.job.uid] = change.job


def check_manifest(body: Mapping[str, Any]) -> None:
    """Raises InvalidError, which names the field, if the API server or the operator would reject this job."""
    if body.get("kind") != names.KIND or body.get("apiVersion") != names.API_VERSION:
        raise errors.InvalidError(
            f"kind: must be {names.KIND} of {names.API_VERSION}, not {body.get('kind')} of {body.get('apiVersion')}: "
            "`kubectl elasticjob convert` turns jobs of other operators into one"
        )
    taking.check_written(body.get("spec"))
    metadata = body.get("metadata") or {}
    if not metadata.get("name") and not metadata.get("generateName"):
        raise errors.InvalidError("metadata.name: is required: give the job a name")


def describe_state(job: Job) -> str:
    """The phase, and the condition that explains it, for a timeout message."""
    state = f"its phase is {job.phase}"
    for type in ("Failed", "Degraded", "Running"):
        found = job.status.condition(type)
        if found is not None and (found.status == "True") == (type != "Running"):
            return f"{state} ({found.reason}: {found.message})" if found.message else f"{state} ({found.reason})"
    return state


class _Newest:
    """The newest of any number of events, as they are cut."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, int, dict[str, Any]]] = []  # a heap, the oldest first
        self._count = 0

    def push(self, event: dict[str, Any]) -> None:
        self._count += 1
        heapq.heappush(self._kept, (Happening.parse(event).time or 0.0, self._count, event))
        if len(self._kept) > self._most:
            heapq.heappop(self._kept)

    @property
    def found(self) -> list[dict[str, Any]]:
        return [event for _, _, event in self._kept]


class NewestEvents:
    """Of the events of a namespace, which may be any number, the newest of one job, and of its pods."""

    def __init__(self, name: str) -> None:
        self._name, self._prefix = name, names.pod_name(name, 0)[:-1]
        self._kept: dict[str, _Newest] = {}  # by kind

    def take(self, raw: dict[str, Any]) -> None:
        subject = raw.get("involvedObject") or {}
        if _is_about(subject, self._name, self._prefix):
            self._kept.setdefault(subject["kind"], _Newest(MOST_EVENTS)).push(cut_event(raw))

    @property
    def found(self) -> list[dict[str, Any]]:
        return [event for kept in self._kept.values() for event in kept.found]


class NewestSizes:
    """Of the events of a namespace, which may be any number, the newest that tell the size of some job."""

    def __init__(self) -> None:
        self._kept = _Newest(MOST_SIZES)

    def take(self, raw: dict[str, Any]) -> None:
        if raw.get("reason") in SIZE_REASONS:
            self._kept.push(cut_event(raw, MOST_SIZE_MESSAGE))

    @property
    def found(self) -> list[dict[str, Any]]:
        return self._kept.found


def choose_events(found: Sequence[dict[str, Any]], name: str, job: Job | None) -> list[Happening]:
    """The events of a job and its pods, oldest first.

    Names are reused, UIDs are not: given a job, events of another job of the same name are excluded, and so are those
    of pods that have an event older than the job.
    """
    prefix = names.pod_name(name, 0)[:-1]
    created = (job.created or 0.0) if job is not None else 0.0
    mine = [(raw.get("involvedObject") or {}, Happening.parse(raw)) for raw in found]
    mine = [(subject, event) for subject, event in mine if _is_about(subject, name, prefix)]
    older = {subject.get("uid") for subject, event in mine if event.time is not None and event.time < created}

    def belongs(subject: dict[str, Any]) -> bool:
        uid = subject.get("uid")
        if job is None or not uid:
            return True
        return uid == job.uid if subject.get("kind") == names.KIND else uid not in older

    return sorted((event for subject, event in mine if belongs(subject)), key=lambda event: event.time or 0.0)


def _is_about(subject: dict[str, Any], job: str, pod_prefix: str) -> bool:
    name, kind = str(subject.get("name") or ""), subject.get("kind")
    if kind == names.KIND:
        return name == job
    return kind == "Pod" and name.startswith(pod_prefix) and name[len(pod_prefix) :].isdecimal()


def sum_usage(raw: dict[str, Any]) -> dict[str, str]:
    usages = [c.get("usage") or {} for c in raw.get("containers") or []]
    return {kind: " + ".join(str(u[kind]) for u in usages if kind in u) for kind in ("cpu", "memory")}
