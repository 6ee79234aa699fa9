"""The client's values: jobs, pods, events and changes, frozen, created from the API server's JSON.

Pure. `Job` has both the raw object and the parsed status, so that `-o yaml` prints the server's object. Jobs with an
invalid spec can be shown too: `spec` is parsed only on access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from elasticjob_operator import api, numerals
from elasticjob_operator.api import names
from elasticjob_operator.model import reading
from elasticjob_operator.model.short_status import shorten
from elasticjob_operator.templates import taking
from elasticjob_operator.text import cut
from elasticjob_operator.times import parse_time

_LONGEST: Final = 256  # characters of a name or a reason, of which Kubernetes makes no longer ones
_LONGEST_MESSAGE: Final = 4096  # characters of an event's message: the API server takes a megabyte


def _shorten(value: object, limit: int = _LONGEST) -> str:
    """A text in an event or a pod, however long somebody made it."""
    return cut(str(value or ""), limit)


@dataclass(frozen=True)
class Job:
    """An ElasticJob as the API server returned it."""

    raw: dict[str, Any]
    status: api.Status
    is_short: bool = False  # much of its status is not kept

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Job:
        return cls(raw=raw, status=reading.read_status(raw.get("status")).status)

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.raw.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid", ""))

    @property
    def created(self) -> float | None:
        return parse_time(self.metadata.get("creationTimestamp"))

    @cached_property
    def spec(self) -> api.Spec | None:
        """The valid spec, together with the template that it took; None if it is invalid or waits for its template."""
        try:
            return api.parse_spec(taking.complete(self.raw.get("spec"), self.status))
        except api.InvalidJobError:
            return None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another controller runs it, perhaps in another cluster, and says what its status says."""
        return self.spec is not None and not self.spec.is_ours

    @property
    def phase(self) -> str:
        return self.status.phase.value if self.status.phase else "Pending"

    @property
    def members(self) -> tuple[api.Member, ...]:
        """The members of the world, in rank order."""
        return tuple(sorted(self.status.rendezvous.members, key=lambda m: m.rank))

    def rank_ranges(self) -> dict[str, range]:
        """The ranks of each pod's processes, as in the script's `RANK`."""
        found: dict[str, range] = {}
        first = 0
        for member in self.members:
            found[member.pod] = range(first, first + member.nproc)
            first += member.nproc
        return found

    def pod_of_rank(self, rank: int) -> str | None:
        return next((pod for pod, ranks in self.rank_ranges().items() if rank in ranks), None)


def whole(job: Job) -> Job:
    return job


_IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_STAND_IN: Final[dict[str, Any]] = {"spec": {"containers": [{"name": "worker"}]}}


def summarize(job: Job) -> Job:
    """What tables and pages of many jobs show of one: nothing of what its author may make as large as an object."""
    metadata = {key: job.metadata[key] for key in _IDENTITY if key in job.metadata}
    status = job.status.model_copy(update={"template": None})
    return Job({"metadata": metadata, "spec": _find_sizes(job)}, status)


def brief(job: Job) -> Job:
    """The same for tables of any number of jobs: nothing of what only the page of one shows."""
    return replace(summarize(job), status=shorten(job.status), is_short=True)


def _find_sizes(job: Job) -> dict[str, Any]:
    """A valid spec of the same sizes; of an invalid one, the numbers that are written in it."""
    spec = job.spec
    if spec is None:
        written = job.raw.get("spec")
        policy = written.get("elasticPolicy") if isinstance(written, dict) else None
        return _numbers(written, "replicas") | {"elasticPolicy": _numbers(policy, "minReplicas", "maxReplicas")}
    policy = spec.elastic_policy
    return {
        "replicas": spec.replicas,
        "elasticPolicy": {"minReplicas": policy.min_replicas, "maxReplicas": policy.max_replicas},
        "runPolicy": {"suspend": spec.run_policy.suspend},
        **({"managedBy": spec.manager} if spec.manager else {}),
        "scaling": {"mode": spec.scaling.mode.value},
        "template": _STAND_IN,
    }


def _numbers(written: object, *fields: str) -> dict[str, Any]:
    return {field: value for field, value in _pick(written, *fields).items() if isinstance(value, int)}


def _pick(written: object, *fields: str) -> dict[str, Any]:
    found = written if isinstance(written, dict) else {}
    return {field: found[field] for field in fields if field in found}


def cut_pod(raw: dict[str, Any]) -> dict[str, Any]:
    """What a `Pod` reads of the object, which may have any size."""
    metadata, spec, status = (raw.get(part) or {} for part in ("metadata", "spec", "status"))
    trainer = (metadata.get("annotations") or {}).get(names.ANNOTATION_TRAINER)
    first, entries = (spec.get("containers") or [])[:1], status.get("containerStatuses") or []
    name = trainer or (first[0].get("name") if first else "")
    waiting = next((entry for entry in entries if _why_waiting(entry)), None)
    containers = [
        {
            **_pick(entry, "name"),
            "state": {
                kind: {"reason": _shorten(told.get("reason"))} for kind, told in (entry.get("state") or {}).items()
            },
        }
        for entry in entries
        if entry is waiting or entry.get("name") == name
    ]
    return {
        "metadata": {
            **_pick(metadata, "name", "namespace", "uid", "deletionTimestamp"),
            "labels": _pick(metadata.get("labels"), names.LABEL_INDEX),
            "annotations": {names.ANNOTATION_TRAINER: _shorten(trainer)},
        },
        "spec": {**_pick(spec, "nodeName"), "containers": [_pick(one, "name") for one in first]},
        "status": {**_pick(status, "phase"), "containerStatuses": containers},
    }


def _why_waiting(entry: dict[str, Any]) -> str:
    return str(((entry.get("state") or {}).get("waiting") or {}).get("reason") or "")


def cut_event(raw: dict[str, Any], message: int = _LONGEST_MESSAGE) -> dict[str, Any]:
    """What a `Happening` reads of the object, and what it is about."""
    subject = _pick(raw.get("involvedObject"), "kind", "name", "uid")
    return {
        **_pick(raw, "lastTimestamp", "eventTime", "count"),
        "metadata": _pick(raw.get("metadata"), "creationTimestamp"),
        "series": _pick(raw.get("series"), "lastObservedTime", "count"),
        "involvedObject": {field: _shorten(value) for field, value in subject.items()},
        "type": _shorten(raw.get("type")),
        "reason": _shorten(raw.get("reason")),
        "message": _shorten(raw.get("message"), message),
    }


@dataclass(frozen=True)
class Pod:
    """A worker pod, with the properties that matter to users."""

    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"].get("uid", ""))

    @property
    def index(self) -> int | None:
        text = (self.raw["metadata"].get("labels") or {}).get(names.LABEL_INDEX, "")
        return numerals.read_count(text)

    @property
    def node(self) -> str:
        return str((self.raw.get("spec") or {}).get("nodeName") or "")

    @property
    def leaving(self) -> bool:
        return bool(self.raw["metadata"].get("deletionTimestamp"))

    @property
    def phase(self) -> str:
        if self.leaving:
            return "Terminating"
        for entry in (self.raw.get("status") or {}).get("containerStatuses") or []:
            if why := _why_waiting(entry):
                return _shorten(why)
        return str((self.raw.get("status") or {}).get("phase") or "Pending")

    @property
    def ended(self) -> bool:
        return (self.raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    @property
    def started(self) -> bool:
        """Whether the trainer container has started, so that it has a log."""
        entries = (self.raw.get("status") or {}).get("containerStatuses") or []
        return any(
            {"running", "terminated"} & set(e.get("state") or {}) for e in entries if e.get("name") == self.trainer
        )

    @property
    def trainer(self) -> str:
        """The container that trains: the one named in the annotation, or else the first."""
        annotations = self.raw["metadata"].get("annotations") or {}
        containers = (self.raw.get("spec") or {}).get("containers") or [{}]
        return str(annotations.get(names.ANNOTATION_TRAINER) or containers[0].get("name", ""))


@dataclass(frozen=True)
class Happening:
    """A Kubernetes event of the job or one of its pods."""

    time: float | None
    type: str
    reason: str
    message: str
    object: str
    count: int = 1

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Happening:
        series = raw.get("series") or {}
        when = series.get("lastObservedTime") or raw.get("lastTimestamp") or raw.get("eventTime")
        subject = raw.get("involvedObject") or {}
        return cls(
            time=parse_time(when or (raw.get("metadata") or {}).get("creationTimestamp")),
            type=_shorten(raw.get("type") or "Normal"),
            reason=_shorten(raw.get("reason")),
            message=_shorten(raw.get("message"), _LONGEST_MESSAGE),
            object=f"{_shorten(subject.get('kind')).lower()}/{_shorten(subject.get('name'))}",
            count=numerals.read_count(series.get("count") or raw.get("count")) or 1,
        )


@dataclass(frozen=True)
class Change:
    """One event of a watch: ADDED, MODIFIED or DELETED, with the job after it."""

    type: str
    job: Job


# Aliases for list types: inside the client classes, the method `list` hides the built-in type.
Jobs = list[Job]
Pods = list[Pod]
Happenings = list[Happening]
Words = list[str]


def build_manifest(
    name: str,
    image: str | None,
    command: list[str],
    *,
    template: str | None = None,
    replicas: int | None = None,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    gpus: int = 0,
    nproc: str | int | None = None,
    env: dict[str, str] | None = None,
    namespace: str | None = None,
) -> dict[str, Any]:
    """The manifest of a job that runs `command` in `image`. A `template` gives what is left out.

    Raises api.InvalidJobError, which names the invalid field.
    """
    container: dict[str, Any] = {"name": "worker", "command": command} | ({"image": image} if image else {})
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    policy = {"minReplicas": min_replicas, "maxReplicas": max_replicas}
    spec: dict[str, Any] = {
        "templateRef": {"kind": names.TEMPLATE_KIND, "name": template} if template else None,
        "replicas": replicas if replicas or min_replicas or max_replicas or template else 1,
        "elasticPolicy": {k: v for k, v in policy.items() if v is not None} or None,
        "nprocPerNode": nproc,
        "template": {"spec": {"containers": [container]}},
    }
    spec = {k: v for k, v in spec.items() if v is not None}
    taking.check_written(spec)
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
