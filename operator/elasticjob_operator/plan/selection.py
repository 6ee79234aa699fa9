"""Pod selection: which pods of a running job to keep, delete and create. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import Cause
from elasticjob_operator.failures import incidents, nodes, stragglers
from elasticjob_operator.membership import member_health
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.model.observe import Agent, Pod
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan import policy
from elasticjob_operator.plan.values import Deletion, Seen, first
from elasticjob_operator.sizing import room
from elasticjob_operator.sizing.compose import compose
from elasticjob_operator.sizing.values import Size, View


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods of a job, grouped by what should happen to them."""

    kept: tuple[Pod, ...]
    victims: frozenset[str]  # UIDs of live pods that exceed the wanted number
    departing: Mapping[str, policy.Departure]  # by UID
    replaced: frozenset[str]  # UIDs of members whose place another pod takes, once one is ready
    terminated: frozenset[str]  # UIDs of terminated pods to delete
    forced: frozenset[str]  # UIDs to delete by force
    unresponsive: frozenset[str]  # UIDs of pods whose agents no longer respond
    succeeded: tuple[api.Member, ...]  # members of the current world that have succeeded
    missing: int
    asks: int  # pods there should be if the queue admitted them all
    unadmitted: frozenset[str]  # UIDs of those without quota
    size: Size
    capacity: api.CapacityStatus
    wake_at: float | None = None

    def leaving(self, pod: Pod) -> str:
        """Why this pod has to leave the world; "" if it may stay."""
        gone = self.departing.get(pod.uid)
        if gone:
            return gone.reason
        if pod.uid in self.unadmitted:
            return Cause.QUOTA
        return Cause.SCALE_DOWN if pod.uid in self.victims else ""


def choose_pods(seen: Seen, spec: api.Spec, status: api.Status) -> PodSelection:
    """Choose which pods to keep, delete and create."""
    now, elastic = seen.now, spec.elastic_policy
    members = {m.uid for m in status.rendezvous.members}
    ranks = {m.uid: m.rank for m in status.rendezvous.members}
    is_native = spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR
    succeeded = (find_ended if is_native else find_succeeded)(seen, status.rendezvous)
    done = {m.uid for m in succeeded} | set(status.rendezvous.succeeded)
    unresponsive, unresponsive_at = policy.find_unresponsive(
        *(seen.pods, seen.agents, status.rendezvous),
        elastic=elastic,
        since=seen.hub_started,
        now=now,
        release="" if is_native else seen.release,  # without an agent, a pod follows nobody
    )
    slow = stragglers.find_replaced(spec, status, now)
    swapped = dict.fromkeys(slow.gone, Cause.STRAGGLER) | dict.fromkeys(incidents.replaced(status), Cause.RULE)
    departing = find_departing(seen, status.rendezvous, unresponsive, swapped)
    replaced = slow.members - departing.keys()
    live = [p for p in seen.pods if p.live and p.uid not in done]
    unadmitted = find_unadmitted(live, seen.quota)
    # The script of these has ended too early, and another world has been formed.
    spent = {p.uid for p in live if p.uid not in members and _has_ended(seen.agents.get(p.uid))}
    going = {*departing, *unadmitted, *replaced, *spent}
    staying = [p for p in live if p.uid not in going]
    view = View(
        spec,
        room.retry(status.capacity or api.CapacityStatus(), now),
        len(members),
        len(succeeded),
        quota=None if seen.quota is None else seen.quota.pods,
        pool=seen.pool,
        is_pinned=seen.job.is_pinned,
        is_ending=bool(done),
    )
    spare = max(0, len(staying) - spec.min_replicas)
    timeout = elastic.scaling_timeout_seconds
    withheld = 0 if view.quota is None else _ask(view) - compose(view).pods
    capacity, withdrawn = room.withdraw(
        view.room, staying, spare_room=spare, withheld=withheld, timeout=timeout, now=now
    )
    staying = [p for p in staying if p.uid not in withdrawn]
    view = replace(view, room=capacity)
    size = compose(view)
    needed = done | (members - set(status.restarts.counted))
    # torch's own rendezvous identifies pods by index, and so does a queue.
    by_index = is_native or seen.quota is not None
    kept = policy.choose_kept(
        staying, size.pods, ranks=ranks, nodes=None if by_index else seen.nodes, layout=spec.layout
    )
    stays = kept | replaced | departing.keys()
    answering = {uid for uid, a in seen.agents.items() if a.connected}
    forced, force_at = nodes.overdue_deletions(
        seen.pods, seen.nodes, answering, timeout=elastic.faulty_pod_timeout_seconds, now=now
    )
    return PodSelection(
        kept=tuple(p for p in live if p.uid in kept),
        victims=frozenset(p.uid for p in live if p.uid not in stays),
        departing=departing,
        replaced=replaced,
        terminated=frozenset(p.uid for p in seen.pods if _is_terminated(p, needed)),
        forced=forced,
        unresponsive=unresponsive,
        succeeded=tuple(succeeded),
        missing=_count_missing(seen, spec, size, len(kept), is_ending=bool(done)),
        asks=_ask(view),
        unadmitted=unadmitted,
        size=size,
        capacity=capacity,
        wake_at=first(
            force_at,
            unresponsive_at,
            room.next_overdue(staying, timeout) if len(staying) > spec.min_replicas else None,
            size.until,
            slow.until,
        ),
    )


def _ask(view: View) -> int:
    """How many pods there should be, whatever the queue has admitted."""
    return compose(replace(view, quota=None)).pods


def _count_missing(seen: Seen, spec: api.Spec, size: Size, kept: int, *, is_ending: bool) -> int:
    """How many pods to create. A finishing world gets new pods only if no member is left to finish it.

    In a queue, a terminating pod holds its quota until it is gone; its replacement is created after that. Without its
    template, a job gets none: nobody waits for them.
    """
    if seen.job.lacks_template:
        return 0
    missing = max(0, size.pods - kept)
    if is_ending:
        missing = 0 if kept else min(size.pods, size.wanted)
    return missing if seen.quota is None else min(missing, len(policy.admitted_indices(seen.pods, seen.quota, spec)))


def find_unadmitted(live: Sequence[Pod], quota: Quota | None) -> frozenset[str]:
    """UIDs of the pods whose quota was taken back, or that never had any."""
    return frozenset(p.uid for p in live if quota is not None and not quota.covers(p.index))


def find_departing(
    seen: Seen, world: api.RendezvousStatus, unresponsive: frozenset[str], replaced: Mapping[str, Cause]
) -> dict[str, policy.Departure]:
    """Live pods that have to leave, with the reason, by UID: the cluster removes them, or they do not respond.

    So do those whose place another pod takes, or has taken: `replaced` says why.

    Pods whose agents were released for a suspension leave too, even if the job has been resumed meanwhile.
    """
    found = {}
    sent_home = {m.uid for m in world.members if m.leaving == Cause.SUSPENDED}
    for pod in seen.pods:
        reason = policy.departure(pod, seen.nodes.get(pod.node), seen.agents.get(pod.uid))
        if pod.uid in sent_home and reason is None:
            reason = policy.Departure(Cause.SUSPENDED)
        if pod.uid in unresponsive and reason is None:
            reason = policy.Departure(Cause.UNRESPONSIVE)
        if pod.uid in replaced and reason is None:
            reason = policy.Departure(replaced[pod.uid])
        if reason and not pod.terminal:
            found[pod.uid] = reason
    return found


def _has_ended(agent: Agent | None) -> bool:
    return agent is not None and agent.state.phase is wire.AgentPhase.SUCCEEDED


def _is_terminated(pod: Pod, needed: set[str]) -> bool:
    """Whether a pod has terminated and may be deleted. Succeeded members of the last world are kept as evidence."""
    return pod.terminal and (pod.phase is PodPhase.FAILED or pod.uid not in needed)


def find_succeeded(seen: Seen, world: api.RendezvousStatus) -> list[api.Member]:
    """The members of this world that have succeeded."""
    found = member_health.find_succeeded(world, {p.uid: p for p in seen.pods}, seen.agents)
    return [m for m in world.members if m.uid in found]


def find_ended(seen: Seen, world: api.RendezvousStatus) -> list[api.Member]:
    """The same for torch's own rendezvous: the command ended with 0, which is all that is known of it."""
    pods = {p.uid: p for p in seen.pods if p.phase is PodPhase.SUCCEEDED and p.deleting is None}
    return [m for m in world.members if m.uid in pods and not m.leaving]


def plan_deletions(
    seen: Seen,
    status: api.Status,
    selection: PodSelection,
    verdicts: Sequence[MemberVerdict] = (),
    *,
    is_waiting: bool = False,
) -> tuple[Deletion, ...]:
    """Pods to delete. Members go only after the world continues without them, failed pods once accounted for.

    `is_waiting`: no world can be formed. Members that have stopped then go at once if others have got their quota.
    """
    stopped = {j.member.uid for j in verdicts if is_waiting and j.health is MemberHealth.STOPPED}
    stuck = {j.member.uid: j.why for j in verdicts if _is_stuck(j)}
    members = {m.uid for m in (*status.rendezvous.members, *seen.job.status.rendezvous.members)}
    members -= stopped & selection.unadmitted
    counted = frozenset(status.restarts.counted)
    found: list[Deletion] = []
    for pod in seen.pods:
        if pod.uid in selection.forced:
            found.append(Deletion(pod.name, pod.uid, "its node or its processes do not respond", force=True))
        elif pod.deleting is not None:
            continue
        elif pod.uid in selection.terminated:
            if pod.uid in counted or pod.phase is PodPhase.SUCCEEDED:
                found.append(Deletion(pod.name, pod.uid, "it has terminated"))
        elif pod.uid in stuck:
            found.append(Deletion(pod.name, pod.uid, stuck[pod.uid]))
        elif pod.uid in selection.unresponsive:
            found.append(Deletion(pod.name, pod.uid, "its agent does not respond"))
        elif pod.uid in members:
            continue
        elif selection.leaving(pod):
            found.append(Deletion(pod.name, pod.uid, selection.leaving(pod)))
    return tuple(found)


def _is_stuck(verdicts: MemberVerdict) -> bool:
    """Whether a member is lost although its agent responds, because it does not start or stop its workers."""
    worker = verdicts.worker
    if verdicts.health is not MemberHealth.LOST or worker is None or worker.agent is None or worker.agent.mute:
        return False
    return worker.pod.live and worker.agent.connected and worker.agent.state.phase is not wire.AgentPhase.FAILED


def dismiss(seen: Seen, status: api.Status, selection: PodSelection) -> dict[str, wire.Directive]:
    """Stop directives for agents that are no longer needed: their pods are deleted, or their work is done."""
    members = {m.uid for m in (*status.rendezvous.members, *seen.job.status.rendezvous.members)}
    going, succeeded = selection.victims | set(selection.departing), frozenset(status.rendezvous.succeeded)
    told: dict[str, wire.Directive] = {}
    for uid, agent in seen.agents.items():
        if not agent.connected or uid in members:
            continue
        if uid in succeeded:
            told[uid] = wire.Stop(reason="completed")
        elif uid in going:
            told[uid] = wire.Stop(reason="not-wanted")
    return told
