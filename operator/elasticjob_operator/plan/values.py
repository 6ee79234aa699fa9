"""Frozen values: the observed state of one job (`Seen`), and what to do about it (`Plan`).

`plan` turns a `Seen` into a `Plan`; `apply` carries the plan out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import health_watch
from elasticjob_operator.membership import member_health
from elasticjob_operator.model.observe import Agent, Job, Node, Pod
from elasticjob_operator.model.quota import Placement, Quota
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.policy import Resize
from elasticjob_operator.sizing import growth
from elasticjob_operator.sizing.values import PoolDecision
from elasticjob_operator.templates import taking


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of the operator's administrator that plans depend on."""

    membership: member_health.Settings = field(default_factory=member_health.Settings)
    stable_seconds: float = growth.STABLE_SECONDS
    ca_pem: str = ""
    has_kueue: bool = False  # queues are asked
    has_native_gangs: bool = False  # PodGroups of Kubernetes' own scheduler are served, and wanted


class Kind(StrEnum):
    """Kinds of child objects other than pods."""

    SERVICE = "Service"
    DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    CONFIG_MAP = "ConfigMap"
    POD_GROUP = "PodGroup"
    AUTOSCALER = "HorizontalPodAutoscaler"


# What a job can do without: no pod waits for them.
EXTRAS: Final = frozenset({Kind.SERVICE, Kind.DISRUPTION_BUDGET, Kind.AUTOSCALER})


@dataclass(frozen=True, slots=True)
class Child:
    """A wanted object and the digest of its inputs. It has to be written if the digest differs."""

    kind: Kind
    name: str
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.kind, self.values], sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that is known about one job at one point in time."""

    job: Job
    pods: tuple[Pod, ...] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)  # by pod UID
    leftover: Mapping[str, Agent] = field(
        default_factory=dict
    )  # agents of an earlier job of this name: released, not counted
    nodes: Mapping[str, Node] = field(default_factory=dict)
    children: frozenset[tuple[str, str, str]] = frozenset()  # (kind, name, digest) that exist
    quota: Quota | None = None  # what its queue has admitted; None where it has no queue
    now: float = 0.0
    hub_started: float = 0.0
    release: str = ""  # of this operator; "" if it knows no others
    faulty_nodes: tuple[str, ...] = ()  # by their conditions, and by the jobs of the namespace
    suspected_nodes: tuple[str, ...] = ()  # by the jobs of others
    pool: PoolDecision | None = None  # for a job that shares a pool
    template: taking.Found | taking.Refusal | None = None  # for a job that waits for it; None: nobody looked
    origin: Job | None = None  # the job of checkpoints.from.job, if there is one
    problem: tuple[str, str] | None = None  # (reason, message): why the API server rejected the last writes
    altered: str = ""  # what others have changed in its pods, for a job that fails
    said: Mapping[str, tuple[bool, str]] = field(default_factory=dict)  # about pods that wait: see `failures.waiting`
    unresized: tuple[str, str] = ("", "")  # the template that the API server did not resize pods to, and why
    health: health_watch.Memory = field(default_factory=dict)  # what the reports say about the rules of the job
    contested_until: float = 0.0  # writers who fight about its size: until then, it does not grow

    @property
    def why_unresized(self) -> str:
        """Why the API server does not resize pods to the template of the job; "" if it may do so."""
        spec, (template, why) = self.job.spec, self.unresized
        return why if spec is not None and spec.template_hash == template else ""

    @property
    def weight(self) -> int:
        """How much there is to plan with, in pods: what pods and agents have said counts, too."""
        texts = sum(len(pod.exit.message) for pod in self.pods if pod.exit)
        items = sum(len(pod.sizes) // 32 for pod in self.pods) + (len(self.quota.shares) // 8 if self.quota else 0)
        for agent in self.agents.values():
            state = agent.state
            items += len(state.shards) // 8 + (len(state.preflight.links) if state.preflight else 0)
            items += 2 * len(state.signs)  # each is a line that is cleaned
            texts += sum(
                len(one.traceback or "") + len(one.message or "") for one in (state.failure, state.unsaved) if one
            )
        if self.job.spec is not None:
            items += len(health_watch.rules_of(self.job.spec)) * len(self.agents) // 2
        return len(self.pods) + len(self.job.status.rendezvous.members) + texts // 256 + items

    def step_of(self, generation: int) -> int | None:
        """The highest step that any rank reported in this world."""
        told = (a.progress for a in self.agents.values())
        steps = [p.step for p in told if p is not None and p.step is not None and p.generation == generation]
        return max(steps, default=None)

    @property
    def step(self) -> int | None:
        """The highest step that any rank reported."""
        steps = [a.progress.step for a in self.agents.values() if a.progress and a.progress.step is not None]
        return max(steps, default=None)


# Fields of a status, and of its conditions, by which nothing is decided but what is told next.
_TELLING: Final = ("conditions", "archive", "progress", "goodput", "lost_seconds", "stragglers", "preflight")
_NEWS: Final = frozenset({"CheckpointArchived", "CheckpointCopied", "Incident", "Warning"})


def _states_of(status: api.Status) -> dict[str, str]:
    return {one.type: one.status for one in status.conditions if one.type not in _NEWS}


@dataclass(frozen=True, slots=True)
class NewPod:
    index: int
    avoid: tuple[str, ...] = ()  # nodes
    placement: Placement | None = None  # of a job with a queue
    gang: str = ""  # the scheduler whose PodGroup it joins, as `children.find_gang` names it


@dataclass(frozen=True, slots=True)
class Deletion:
    name: str
    uid: str
    why: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    status: api.Status
    reason: str = ""
    create: tuple[NewPod, ...] = ()
    confirm: bool = False  # verify that the job still exists before creating pods
    delete: tuple[Deletion, ...] = ()
    ensure: tuple[Child, ...] = ()
    remove: tuple[Child, ...] = ()
    resize: tuple[Resize, ...] = ()
    directives: Mapping[str, wire.Directive] = field(default_factory=dict)
    events: tuple[reporting.Event, ...] = ()
    announces: bool = False  # send the directives only after the status is persisted
    claims: bool = False  # the status claims the job before other operators can: nothing is written before it
    set_replicas: int | None = None
    asks: int | None = None  # pods that the job would have if its queue admitted them all; None: as many as it has
    set_suspend: bool = False  # a rule suspends the job
    is_pool_size: bool = False  # whether the pool chose `set_replicas`; any other is a default
    delete_job: bool = False
    keep: tuple[str, ...] = ()  # status fields that must not be written, although they may differ
    wake_at: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether members wait for what is written of the job: it has a world, or it has ended."""
        return self.announces or self.status.rendezvous.generation > 0

    @property
    def is_idle(self) -> bool:
        """Whether the plan writes nothing except possibly the status."""
        writes = (
            self.create,
            self.delete,
            self.ensure,
            self.remove,
            self.resize,
            self.delete_job,
            self.set_replicas,
            self.set_suspend,
        )
        return not any(writes)

    def writes(self, before: api.Status) -> bool:
        """Whether the plan writes anything."""
        return not self.is_idle or self.status != before

    def only_tells(self, before: api.Status) -> bool:
        """Whether the plan does nothing but write a status with which no decision of the next pass would differ."""
        if not self.is_idle or self.announces or self.status == before:
            return False
        if _states_of(self.status) != _states_of(before):
            return False
        told = {name: getattr(self.status, name) for name in _TELLING}
        return before.model_copy(update=told) == self.status

    def held_back(self, until: float, *, pods: bool) -> Plan:
        """The same plan without what was just rejected, before `until`. `pods`: that is what they need, or they."""
        if not pods:
            return self.without_extras(until)
        return replace(self, create=(), confirm=False, ensure=(), wake_at=first(self.wake_at, until))

    def deleting_less(self, until: float | None) -> Plan:
        """The same plan with one deletion for all, or with none before `until`: deletions have been refused."""
        if until is None:
            return replace(self, delete=self.delete[:1], remove=() if self.delete else self.remove[:1])
        return replace(self, delete=(), remove=(), wake_at=first(self.wake_at, until))

    def without_extras(self, until: float) -> Plan:
        """The same plan without what a job can do without, before `until`."""
        ensure = tuple(child for child in self.ensure if child.kind not in EXTRAS)
        return replace(self, ensure=ensure, wake_at=first(self.wake_at, until))


def first(*times: float | None) -> float | None:
    """The earliest of these times."""
    return min((t for t in times if t is not None), default=None)
