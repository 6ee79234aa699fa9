"""Deadlines, and which pods stay: one function a rule. Pure; each one is a ladder with the normal case last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import Cause
from elasticjob_operator.model.observe import Agent, Node, Pod, parse_time


@dataclass(frozen=True, slots=True)
class Deadline:
    """The nearest deadline: passed ones carry a reason for the Failed condition."""

    reason: str = ""
    message: str = ""
    at: float | None = None


def check_deadlines(spec: api.Spec, status: api.Status, now: float) -> Deadline:
    """Whether a deadline of runPolicy has passed, else when the next one does.

    A resumed job starts anew: `startTime` moves, so suspended time does not count.
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
    has_run = running is not None and status.goodput.since is not None  # before, it is the start that takes long
    if policy.fault_deadline_seconds is not None and has_run and running is not None and running.status == "False":
        at = (parse_time(running.last_transition_time) or now) + policy.fault_deadline_seconds
        checks.append((at, "FaultDeadlineExceeded", "could not train for runPolicy.faultDeadlineSeconds"))
    for at, reason, message in checks:
        if now >= at:
            return Deadline(reason, message)
    return Deadline(at=min((at for at, _, _ in checks), default=None))


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a pod has to leave. `patient`: only once at least min are left without it."""

    reason: str
    patient: bool = False


SENT_AWAY = frozenset({Cause.POD_DELETED, Cause.DISRUPTION, Cause.POD_LEAVING})  # departures that nobody can put off


def departure(pod: Pod, node: Node | None, agent: Agent | None) -> Departure | None:
    """Whether the cluster, or the pod itself, wants it out of the world.

    A node that is about to go still trains: below min we do not end the world by our own hand.
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
    return None


def find_unresponsive(
    pods: Sequence[Pod],
    agents: Mapping[str, Agent],
    world: api.RendezvousStatus,
    *,
    elastic: api.ElasticPolicy,
    since: float,
    now: float,
) -> tuple[frozenset[str], float | None]:
    """Pods that run while their agents do not answer, or do not leave a world that is over; and when the next is due.

    Where no agent of the job answers at all, the fault is more likely ours: then nobody is blamed.
    """
    timeout = elastic.faulty_pod_timeout_seconds
    members = {m.uid for m in world.members}
    formed = parse_time(world.formed_time) or 0.0
    if not any(a.connected for a in agents.values()):
        return frozenset(), None
    found: dict[str, float] = {}
    for pod in pods:
        agent = agents.get(pod.uid)
        if not pod.live or not pod.started:
            continue
        if agent is not None and agent.connected:
            if pod.uid not in members and agent.state.phase in wire.BUSY:
                stopping = timeout + elastic.graceful_shutdown_timeout_seconds
                found[pod.uid] = max(agent.since, agent.state_since, formed) + stopping
        elif agent is not None:
            found[pod.uid] = agent.since + timeout
        elif pod.uid in members:  # it had an agent before this hub started
            found[pod.uid] = since + timeout
    later = [at for at in found.values() if now < at]
    return frozenset(uid for uid, at in found.items() if now >= at), min(later, default=None)


def choose_kept(pods: Sequence[Pod], keep: int, *, ranks: Mapping[str, int]) -> frozenset[str]:
    """UIDs of the pods to keep. First to go: outside the world and without a node, then the highest index.

    Rank 0 goes last: its store and its log are where people look.
    """

    def worth(pod: Pod) -> tuple[bool, bool, bool, int]:
        rank = ranks.get(pod.uid)
        return (rank is None, pod.unschedulable is not None, rank != 0, pod.index)

    return frozenset(p.uid for p in sorted(pods, key=worth)[: max(0, keep)])


def free_indices(pods: Iterable[Pod], count: int, *, limit: int | None = None) -> tuple[int, ...]:
    """The lowest replica indices that no existing pod has, ended and leaving ones included; all below `limit`."""
    taken = {p.index for p in pods}
    found: list[int] = []
    index = 0
    while len(found) < count and (limit is None or index < limit):
        if index not in taken:
            found.append(index)
        index += 1
    return tuple(found)
