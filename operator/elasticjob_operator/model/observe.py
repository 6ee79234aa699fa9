"""Converts raw API objects to frozen snapshots. The only module that knows the field names of Kubernetes objects.

The snapshots are deliberately small: the operator keeps one for each pod and node of the cluster.
Times are in seconds since the epoch. This module makes no decisions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

from elasticjob_operator import api, numerals, quantity
from elasticjob_operator.api import bounds, names, podtemplate, wire
from elasticjob_operator.model import containers, contests, notices, ownership, reading, topology
from elasticjob_operator.model.containers import LONGEST_MESSAGE, LONGEST_REASON, Exit, PodPhase
from elasticjob_operator.model.topology import Place
from elasticjob_operator.templates import taking
from elasticjob_operator.times import parse_time
from elasticjob_operator.untyped import as_object

Raw = Mapping[str, Any]
T = TypeVar("T")
Devices = tuple[tuple[str, int], ...]  # of the resources of pools; who counts them knows the pools


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    job: str
    job_uid: str
    index: int
    phase: PodPhase = PodPhase.PENDING  # of the trainer container: see `containers`
    node: str = ""
    ip: str = ""
    created: float = 0.0
    scheduled: float | None = None
    unschedulable: float | None = None  # since when the scheduler reports it
    unschedulable_message: str = ""
    deleting: float | None = None  # when its grace period ends
    held_by: tuple[str, ...] = ()  # finalizers, and nothing else: the API server would have removed it
    started: bool = False  # the trainer is running
    began: float | None = None  # when the trainer started
    lingers: bool = False  # the trainer has terminated, but other containers are running
    waiting: str = ""  # why the trainer is waiting: SchedulingGated, ImagePullBackOff, CreateContainerConfigError, ...
    waiting_message: str = ""
    exit: Exit | None = None
    disruption: str = ""  # reason of the DisruptionTarget condition
    dead_sidecar: str = ""  # a container beside the trainer that has failed
    sick_device: str = ""  # a device of its own that the kubelet reports as unhealthy
    reason: str = ""  # status.reason, for example Evicted or NodeLost
    message: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    template_hash: str = ""
    template_shape: str = ""
    release: str = ""  # of the operator that has made it; "" if an earlier version has
    sizes: tuple[podtemplate.Size, ...] = ()  # CPU and memory that its spec asks for
    devices: Devices = ()  # what it holds of its node
    resize_problem: str = ""  # why the node has not given it these
    resource_version: str = ""
    is_shared: bool = False  # the job is not its only owner
    deadline_seconds: int | None = None  # activeDeadlineSeconds of its spec ...
    deadline_writer: str = ""  # ... and who has set it; "" if the API server does not know, as of admission

    @property
    def terminal(self) -> bool:
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def live(self) -> bool:
        """Whether the pod has not terminated and is not being deleted."""
        return not self.terminal and self.deleting is None

    @property
    def holds_resources(self) -> bool:
        """Whether any container may run, or will."""
        return self.lingers or not self.terminal


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What a node gives to the pool that it belongs to; nothing if it belongs to none."""

    pool: str = ""
    devices: int = 0
    device_rate: float = 0.0  # what a device costs an hour


@dataclass(frozen=True, slots=True)
class Stranger:
    """A pod with the operator's label that is none of its workers: what it holds of its node."""

    namespace: str
    node: str
    devices: Devices
    resource_version: str


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    ready: bool = True
    not_ready_since: float | None = None
    cordoned: bool = False
    leaving: str = ""  # key of the taint that announces its removal
    problem: str = ""  # the condition that says that it is broken
    tainted: bool = False  # the operator has told everybody that it is faulty
    reported: bool = False  # the same, as a condition
    created: float = 0.0  # a repaired machine may have the name of the one before
    share: PoolShare = PoolShare()
    place: Place = ()  # in the network


@dataclass(frozen=True, slots=True)
class Agent:
    """The hub's knowledge of one worker pod's agent."""

    pod: str
    pod_uid: str
    connected: bool
    since: float  # when it connected, or lost the connection
    state: wire.AgentState
    lost_by: str = ""  # "" while connected, "closed" (the socket closed), "silent" (heartbeat timeout)
    state_since: float = 0.0  # when `state.phase` or `state.generation` last changed
    progress: wire.Progress | None = None
    progress_since: float = 0.0  # when that came
    agent_id: str = ""
    mute: bool = False  # connected, but it has not answered the hub's question in time


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why the spec of a job is not kept: there is no room for one that takes so many bytes."""

    REASON: ClassVar[str] = "NoRoom"  # of a condition

    size: int
    manager: str = ""  # the controller that manages the job; "" if none is named

    @property
    def message(self) -> str:
        return (
            f"the operator has no room for a spec that takes {self.size // 1024} KiB of its memory: delete jobs with "
            "large templates of this namespace, or the finished ones if there are thousands; or shorten spec.template: "
            "move large texts and lists into a ConfigMap"
        )


@dataclass(frozen=True, slots=True)
class Job:
    namespace: str
    name: str
    uid: str
    spec: api.Spec | None  # None if it is invalid (see `problems`), or `awaited`
    status: api.Status
    generation: int = 1
    created: float = 0.0
    deleting: bool = False
    held_by: tuple[str, ...] = ()  # finalizers, if it is being deleted
    awaited: taking.Awaited | None = None  # the template that it has still to take
    no_room: NoRoom | None = None  # its spec was not kept; it is read again when there is room
    late: NoRoom | None = None  # a change of its spec was not, and the one before is in force
    lacks_template: bool = False  # of which no more is kept than what pods that are there need: none are made of it
    problems: tuple[api.Problem, ...] = ()  # together with a spec: it was corrected, and the problems are reported
    has_replicas: bool = True
    size_writer: str = ""  # who has written spec.replicas the last time, as far as the API server knows
    own_replicas: int | None = None  # the number in spec.replicas, if nobody but the operator has written it
    status_raw: Raw = field(default_factory=dict, compare=False)
    is_short: bool = False  # much of its status was not kept: it is read again before anything is done
    asked: reading.Asked | None = field(default=None, compare=False, repr=False)
    unread: tuple[str, ...] = ()  # status fields that decisions depend on and that could not be parsed
    labels: Mapping[str, str] = field(default_factory=dict)  # only those that mean something: `names.MARKS` ...
    annotations: Mapping[str, str] = field(default_factory=dict)  # ... as of these
    notices: tuple[reading.Notice, ...] = ()  # warnings for the user that do not stop the job

    @property
    def key(self) -> names.JobKey:
        return (self.namespace, self.name)

    @property
    def manager(self) -> str:
        """The controller that manages it; "" if none is named, as far as its spec is kept."""
        said = self.spec or self.awaited or self.no_room
        return said.manager if said is not None else ""

    @property
    def identity(self) -> Job:
        """The job without all that it says, to be kept when the job may be gone."""
        return Job(self.namespace, self.name, self.uid, spec=None, status=api.Status())

    @property
    def is_corrected(self) -> bool:
        """Whether it ended for what its manifest says, before it had a world, and has another manifest by now."""
        status, failed = self.status, self.status.condition("Failed")
        if failed is None or failed.status != "True" or failed.reason not in ("InvalidSpec", "InvalidTemplate"):
            return False
        has_begun = status.rendezvous.generation > 0
        is_read = (self.spec is not None or self.no_room is not None) and not (self.problems or self.unread)
        return is_read and not has_begun and self.generation > status.observed_generation

    @property
    def is_pinned(self) -> bool:
        """Whether spec.replicas of a pooled job was written by somebody other than the pool."""
        spec = self.spec
        return spec is not None and spec.is_pooled and self.has_replicas and self.own_replicas is None

    @property
    def is_sized_by_pool(self) -> bool:
        """Whether the pool chooses the number of pods."""
        return self.spec is not None and self.spec.is_pooled and not self.is_pinned

    @property
    def problems_text(self) -> str:
        """All validation errors as one message; empty if the spec is valid."""
        return "; ".join(str(problem) for problem in self.problems)[:4096]


MOST_INDEX: Final = 10**9 - 1
MOST_CONDITIONS: Final = 64  # of a pod
_MOST_SIZES: Final = 2 * podtemplate.MOST_SIZES  # webhooks add containers


def observe_node(raw: Raw, share: PoolShare = PoolShare()) -> Node:
    """The snapshot of a core/v1 Node."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    taints = spec.get("taints") or ()
    ready, since = True, None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            ready = condition.get("status") == "True"
            since = None if ready else parse_time(condition.get("lastTransitionTime"))
    return Node(
        name=raw["metadata"]["name"],
        ready=ready,
        not_ready_since=since,
        cordoned=bool(spec.get("unschedulable")),
        leaving=notices.find_removal(taints),
        problem=notices.find_problem(status.get("conditions") or ()),
        tainted=any(taint.get("key") == names.TAINT_FAULTY for taint in taints),
        reported=any(
            one.get("type") == names.CONDITION_FAULTY and one.get("status") == "True"
            for one in status.get("conditions") or ()
        ),
        created=parse_time(raw["metadata"].get("creationTimestamp")) or 0.0,
        share=share,
        place=topology.find_place(raw["metadata"]["name"], raw["metadata"].get("labels") or {}),
    )


def _find_resize_problem(condition: Raw) -> str:
    if condition.get("status") != "True":
        return ""
    return f"{condition.get('reason', '')}: {condition.get('message', '')}"[:LONGEST_MESSAGE]


@functools.lru_cache(maxsize=1024)
def _share(value: T) -> T:
    """One value for all pods of a job."""
    return value


def observe_pod(raw: Raw, devices: Devices = ()) -> Pod | None:
    """The snapshot of a core/v1 Pod that holds these devices; None if it is not a worker of an ElasticJob."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    index = numerals.read_count(labels.get(names.LABEL_INDEX), MOST_INDEX)
    if names.LABEL_JOB not in labels or index is None:
        return None
    conditions = {c.get("type", ""): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    scheduled_time = parse_time(scheduled.get("lastTransitionTime"))
    unscheduled = str(scheduled.get("reason") or "")[:LONGEST_REASON] if scheduled.get("status") == "False" else ""
    unscheduled_message = str(scheduled.get("message") or "")[:LONGEST_MESSAGE] if unscheduled else ""
    unschedulable = unscheduled == "Unschedulable"
    disruption = conditions.get("DisruptionTarget") or {}
    annotations = metadata.get("annotations") or {}
    trainer = annotations.get(names.ANNOTATION_TRAINER) or (spec.get("containers") or [{"name": ""}])[0]["name"]
    found = containers.find_trainer(spec, status, trainer)
    created = parse_time(metadata.get("creationTimestamp")) or 0.0
    some = list(conditions.items())[:MOST_CONDITIONS]
    deadline = numerals.read_count(spec.get("activeDeadlineSeconds"), 2**31)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        job=ownership.owner_of(metadata)[0] or labels[names.LABEL_JOB],  # a label is at most 63 characters
        job_uid=labels.get(names.LABEL_JOB_UID, ""),
        index=index,
        phase=found.phase,
        node=spec.get("nodeName") or "",
        ip=(status.get("podIP") or "")[:LONGEST_REASON],
        created=created,
        scheduled=scheduled_time if scheduled.get("status") == "True" else None,
        unschedulable=(scheduled_time or created) if unschedulable else None,
        unschedulable_message=unscheduled_message if unschedulable else "",
        deleting=parse_time(metadata.get("deletionTimestamp")),
        held_by=ownership.find_keepers(metadata),
        started=found.runs,
        began=parse_time(found.began),
        lingers=found.lingers,
        waiting=unscheduled if unscheduled and not unschedulable else found.waiting,
        waiting_message=unscheduled_message if unscheduled and not unschedulable else found.waiting_message,
        exit=found.exit,
        disruption=disruption.get("reason", "")[:LONGEST_REASON] if disruption.get("status") == "True" else "",
        dead_sidecar=containers.find_dead_sidecar(spec, status, trainer) if found.runs else "",
        sick_device=containers.find_sick_device(status),
        reason=(status.get("reason") or "")[:LONGEST_REASON],
        message=(status.get("message") or "")[:LONGEST_MESSAGE],
        conditions=tuple(sorted((t[:LONGEST_REASON], c.get("status", "")[:LONGEST_REASON]) for t, c in some)),
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE_HASH, "")[:LONGEST_REASON],
        template_shape=annotations.get(names.ANNOTATION_TEMPLATE_SHAPE, "")[:LONGEST_REASON],
        release=_share(annotations.get(names.ANNOTATION_RELEASE, "")[: 2 * ownership.LONGEST_NAME]),
        sizes=_share(
            podtemplate.find_sizes((spec.get("containers") or ())[: podtemplate.MOST_CONTAINERS])[:_MOST_SIZES]
        ),
        devices=_share(devices),
        resize_problem=_find_resize_problem(conditions.get("PodResizePending") or {}),
        resource_version=metadata.get("resourceVersion", ""),
        is_shared=ownership.is_shared(metadata),
        deadline_seconds=deadline,
        deadline_writer="" if deadline is None else ownership.find_writer(metadata, "activeDeadlineSeconds"),
    )


def observe_stranger(raw: Raw, devices: Devices = ()) -> Stranger | None:
    """What such a pod holds: these devices; None if it has no node, or has ended."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    return Stranger(metadata["namespace"], spec["nodeName"], _share(devices), metadata.get("resourceVersion", ""))


def observe_job(raw: Raw, limits: bounds.Limits = bounds.Limits(), before: Job | None = None) -> Job:
    """The snapshot of an ElasticJob. What could not be parsed is in `Job.problems`, `Job.unread` and `Job.notices`.

    `before`: an earlier one of this very job, whose spec is not read again if it is still the same.

    Raises KeyError if the object has no name, and never because of anything else in the object.
    """
    metadata = raw["metadata"]
    generation = metadata.get("generation")
    annotations = as_object(metadata.get("annotations"))
    said = reading.read_status(raw.get("status"))
    asked = reading.read_asked(raw.get("spec"), limits, said.status, metadata, before.asked if before else None)
    spec, read = asked.spec, asked.read
    storeless = None if said.unread else reading.find_missing_store(said.status, spec)
    unread, extra = (storeless.unread, storeless.notices) if storeless else (said.unread, said.notices)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        spec=spec,
        status=said.status,
        generation=generation if isinstance(generation, int) else 1,
        created=parse_time(metadata.get("creationTimestamp")) or 0.0,
        deleting=metadata.get("deletionTimestamp") is not None,
        held_by=ownership.find_keepers(metadata),
        asked=asked,
        problems=read.problems,
        awaited=read.awaited,
        has_replicas=as_object(raw.get("spec")).get("replicas") is not None,
        size_writer=contests.find_writer(metadata),
        own_replicas=read.own_replicas,
        status_raw=said.raw,
        unread=unread,
        labels=_keep_marks(as_object(metadata.get("labels"))),
        annotations=_keep_marks(annotations),
        notices=(*asked.notices, *extra),
    )


def _keep_marks(marks: Raw) -> dict[str, str]:
    return {key: str(marks[key])[: ownership.LONGEST_NAME] for key in names.MARKS if key in marks}


def identify_job(raw: Raw) -> Job | None:
    """A job of which only the identity is known; None if not even that is."""
    metadata = as_object(raw.get("metadata"))
    namespace, name, uid = (metadata.get(key) for key in ("namespace", "name", "uid"))
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        return None
    return Job(namespace, name, uid, spec=None, status=api.Status())


def resolve_nproc(spec: api.Spec) -> int:
    """Worker processes per pod; the same number goes into the environment, the hub and the status."""
    return podtemplate.resolve_nproc(spec.nproc_per_node, spec.template)


def count_processes(spec: api.Spec, pod: Pod) -> int:
    """Worker processes of this pod, which may have CPUs that the template does not name."""
    if not podtemplate.leaves_nproc_to_pods(spec.nproc_per_node, spec.template):
        return resolve_nproc(spec)
    wanted = (podtemplate.trainer_container(spec.template), "limits", "cpu")
    limit = next((amount for *what, amount in pod.sizes if tuple(what) == wanted), "1")
    try:
        return max(1, math.ceil(quantity.parse(limit)))  # as the kubelet rounds them
    except ValueError:
        return 1
