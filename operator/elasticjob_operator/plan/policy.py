"""Deadlines, departures and the choice of pods, one function per rule. Pure; the normal case comes last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import Cause
from elasticjob_operator.api.podtemplate import Size
from elasticjob_operator.membership import groups
from elasticjob_operator.model import topology
from elasticjob_operator.model.observe import Agent, Node, Pod
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.times import parse_time


@dataclass(frozen=True, slots=True)
class Deadline:
    """The nearest deadline. One that has passed has a reason for the Failed condition."""

    reason: str = ""
    message: str = ""
    at: float | None = None


def check_deadlines(spec: api.Spec, status: api.Status, now: float) -> Deadline:
    """Whether a deadline of runPolicy has passed; if not, when the next one does (seconds since the epoch).

    Resuming a job moves `startTime`, so suspended time does not count.
    """
    policy, start = spec.run_policy, parse_time(status.start_time)
    if start is None:
        return Deadline()
    checks: list[tuple[float, str, str]] = []
    if policy.active_deadline_seconds is not None:
        at = start + policy.active_deadline_seconds
        checks.append((at, "DeadlineExceeded", "runPolicy.activeDeadlineSeconds has passed"))
    if policy.startup_deadline_seconds is not None and status.rendezvous.generation == 0:
        at = start + policy.startup_deadline_seconds
        checks.append((at, "StartupDeadlineExceeded", "no world was formed within runPolicy.startupDeadlineSeconds"))
    running = status.condition("Running")
    has_run = running is not None and status.goodput.since is not None  # before that, the startup deadline applies
    if policy.fault_deadline_seconds is not None and has_run and running is not None and running.status == "False":
        at = (parse_time(running.last_transition_time) or now) + policy.fault_deadline_seconds
        checks.append((at, "FaultDeadlineExceeded", "the job has not trained for runPolicy.faultDeadlineSeconds"))
    for at, reason, message in checks:
        if now >= at:
            return Deadline(reason, message)
    return Deadline(at=min((at for at, _, _ in checks), default=None))


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a pod has to leave. `patient`: only if at least minReplicas remain without it."""

    reason: str
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """Give the containers of a running pod these amounts of CPU and memory."""

    name: str
    uid: str
    sizes: tuple[Size, ...]


def is_current(pod: Pod, spec: api.Spec) -> bool:
    """Whether a pod is what the template says: it was made from it, or has its CPU and memory by now."""
    if pod.template_hash == spec.template_hash:
        return True
    sizes = spec.shape.sizes
    return pod.template_shape == spec.shape.hash and len(sizes) <= len(pod.sizes) and set(sizes) <= set(pod.sizes)


def find_resizes(pods: Iterable[Pod], spec: api.Spec, quota: Quota | None, refused: str) -> tuple[Resize, ...]:
    """The running pods that differ from the template in amounts of CPU and memory only.

    Not those of a queue, whose quota is for other amounts, and none once the API server has `refused` one.
    """
    if quota is not None or refused:
        return ()
    differ = (p for p in pods if p.live and p.node and not is_current(p, spec))
    shape = spec.shape
    return tuple(Resize(p.name, p.uid, shape.sizes) for p in differ if p.template_shape == shape.hash)


SENT_AWAY = frozenset({Cause.POD_DELETED, Cause.DISRUPTION, Cause.POD_LEAVING})  # departures that cannot be postponed


def departure(pod: Pod, node: Node | None, agent: Agent | None) -> Departure | None:
    """Why the cluster, or the pod itself, wants the pod to leave the world; None if neither does.

    Pods on a node that will be removed, or with an unhealthy device, can still train: the operator does not go below
    minReplicas for them.
    """
    if pod.deleting is not None:
        return Departure(Cause.POD_DELETED)
    if pod.disruption:
        return Departure(Cause.DISRUPTION)
    if agent is not None and agent.connected and agent.state.phase is wire.AgentPhase.LEAVING:
        return Departure(Cause.POD_LEAVING)
    if node is not None and node.leaving:
        return Departure(Cause.NODE_LEAVING, patient=True)
    if node is not None and node.cordoned:
        return Departure(Cause.DRAIN, patient=True)
    if pod.sick_device:
        return Departure(Cause.DEVICE, patient=True)
    return None


def find_unresponsive(
    pods: Sequence[Pod],
    agents: Mapping[str, Agent],
    world: api.RendezvousStatus,
    *,
    elastic: api.ElasticPolicy,
    since: float,
    now: float,
    release: str = "",
) -> tuple[frozenset[str], float | None]:
    """Running pods whose agents do not respond, or do not leave a world that is over; and when the next one is due.

    If no agent of the job responds, the problem is more likely the operator's, and no pod is blamed, but for those that
    an operator of another release than `release` has made: their agents follow the hub of that one.
    """
    timeout = elastic.faulty_pod_timeout_seconds
    members = {m.uid for m in world.members}
    formed = parse_time(world.formed_time) or 0.0
    is_heard = any(a.connected for a in agents.values())
    found: dict[str, float] = {}
    for pod in pods:
        agent, is_others = agents.get(pod.uid), bool(release and pod.release) and pod.release != release
        if not pod.live or not pod.started or not (is_heard or is_others):
            continue
        if agent is not None and agent.connected:
            if pod.uid not in members and agent.state.phase in wire.BUSY:
                stopping = timeout + elastic.graceful_shutdown_timeout_seconds
                found[pod.uid] = max(agent.since, agent.state_since, formed) + stopping
        elif agent is not None:
            found[pod.uid] = agent.since + timeout
        elif is_others:
            found[pod.uid] = max(since, pod.began or 0.0) + timeout
        elif pod.uid in members:  # its agent was connected before this hub started
            found[pod.uid] = since + timeout
    later = [at for at in found.values() if now < at]
    return frozenset(uid for uid, at in found.items() if now >= at), min(later, default=None)


def choose_kept(
    pods: Sequence[Pod],
    keep: int,
    *,
    ranks: Mapping[str, int],
    nodes: Mapping[str, Node] | None = None,
    layout: api.Layout | None = None,
) -> frozenset[str]:
    """UIDs of the pods to keep. Pods outside the world without a node go first, then those with the highest index.

    Rank 0 goes last: it hosts the store, and users look at its log. With `nodes`, members go in an order that frees
    whole nodes, racks and zones; or whole copies of the model, if these need several pods.
    """

    def worth(pod: Pod) -> tuple[bool, bool, bool, int]:
        rank = ranks.get(pod.uid)
        return (rank is None, pod.unschedulable is not None, rank != 0, pod.index)

    ordered = sorted(pods, key=worth)
    if nodes is not None and layout is not None and layout.pods > 1:
        found = {pod.uid: pod for pod in pods}
        stays = groups.sort_to_keep(sorted(ranks, key=ranks.__getitem__), found.keys(), keep // layout.pods, layout)
        ordered = [*(found[uid] for uid in stays), *(p for p in ordered if p.uid not in ranks)]
    elif nodes is not None and keep < len(pods):
        members = sorted((p for p in pods if p.uid in ranks), key=lambda p: p.index)
        leaving = topology.sort_to_leave(
            members, lambda p: nodes[p.node].place if p.node in nodes else (), lambda p: ranks[p.uid] == 0
        )
        ordered = [*reversed(leaving), *(p for p in ordered if p.uid not in ranks)]
    return frozenset(p.uid for p in ordered[: max(0, keep)])


def admitted_indices(pods: Iterable[Pod], quota: Quota, spec: api.Spec) -> tuple[int, ...]:
    """The replica indices that quota is left for: no pod has them, whether it has ended or is going."""
    taken = {p.index for p in pods}
    most = spec.max_replicas + spec.elastic_policy.spares
    return tuple(index for index in quota.open_indices(most) if index not in taken)


def free_indices(pods: Iterable[Pod], count: int, *, limit: int | None = None) -> tuple[int, ...]:
    """The lowest replica indices below `limit` that no existing pod has, including terminated and leaving ones."""
    taken = {p.index for p in pods}
    found: list[int] = []
    index = 0
    while len(found) < count and (limit is None or index < limit):
        if index not in taken:
            found.append(index)
        index += 1
    return tuple(found)
