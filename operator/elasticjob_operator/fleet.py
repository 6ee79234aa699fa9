"""The pods of a running job, sorted by what is to become of them: kept, given up, leaving, ended, missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticjob_operator import api, capacity, names, nodes, policy, wire
from elasticjob_operator.containers import PodPhase
from elasticjob_operator.observe import Pod, parse_time
from elasticjob_operator.records import Deletion, Seen, first
from elasticjob_operator.standing import Judged, Sizes, Standing, ended_well


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pods, sorted by what is to become of them."""

    kept: tuple[Pod, ...]
    victims: frozenset[str]  # UIDs of those that are live and unwanted
    departing: Mapping[str, policy.Departure]  # by UID
    spent: frozenset[str]  # UIDs of those that have ended and are to be removed
    forced: frozenset[str]  # UIDs to delete by force
    mute: frozenset[str]  # UIDs of those whose agents do not answer any more
    missing: int
    capacity: api.CapacityStatus
    wake_at: float | None = None

    def leaving(self, pod: Pod) -> str:
        """Why this pod has to leave the world; "" where it may stay."""
        gone = self.departing.get(pod.uid)
        if gone:
            return gone.reason
        return "scale-down" if pod.uid in self.victims else ""


def choose_pods(seen: Seen, spec: api.Spec, status: api.Status) -> Fleet:
    """Which pods to keep, to give up and to add."""
    now, elastic = seen.now, spec.elastic_policy
    members = {m.uid for m in status.rendezvous.members}
    ranks = {m.uid: m.rank for m in status.rendezvous.members}
    done = {m.uid for m in find_succeeded(seen, status.rendezvous)} | set(status.rendezvous.succeeded)
    mute, mute_at = policy.find_mute(
        seen.pods, seen.agents, status.rendezvous, elastic=elastic, since=seen.hub_started, now=now
    )
    departing = find_departing(seen, status.rendezvous, mute)
    live = [p for p in seen.pods if p.live and p.uid not in done]
    staying = [p for p in live if p.uid not in departing]
    room = capacity.retry(status.capacity or api.CapacityStatus(), now)
    spare = max(0, len(staying) - spec.min_replicas)
    timeout = elastic.scaling_timeout_seconds
    room, withdrawn = capacity.withdraw(room, staying, spare_room=spare, timeout=timeout, now=now)
    staying = [p for p in staying if p.uid not in withdrawn]
    wanted = count_wanted(seen, spec, status, room)
    needed = members | done
    kept = policy.choose_kept(staying, wanted, ranks=ranks)
    answering = {uid for uid, a in seen.agents.items() if a.connected}
    forced, force_at = nodes.overdue_deletions(
        seen.pods, seen.nodes, answering, timeout=elastic.faulty_pod_timeout_seconds, now=now
    )
    return Fleet(
        kept=tuple(p for p in live if p.uid in kept),
        victims=frozenset(p.uid for p in live if p.uid not in kept and p.uid not in departing),
        departing=departing,
        spent=frozenset(p.uid for p in seen.pods if _is_spent(p, needed)),
        forced=forced,
        mute=mute,
        missing=_count_missing(spec, wanted, len(kept), is_ending=bool(done)),
        capacity=room,
        wake_at=first(
            force_at,
            mute_at,
            capacity.next_overdue(staying, timeout) if len(staying) > spec.min_replicas else None,
            parse_time(room.retry_time) if room.withdrawn else None,
        ),
    )


def _count_missing(spec: api.Spec, wanted: int, kept: int, *, is_ending: bool) -> int:
    """How many pods to add. A world that ends gets new ones only when nobody is left who could finish it."""
    if is_ending:
        return 0 if kept else min(wanted, spec.wanted)
    return max(0, wanted - kept)


def find_departing(seen: Seen, world: api.RendezvousStatus, mute: frozenset[str]) -> dict[str, policy.Departure]:
    """Live pods that the cluster wants gone, or that do not answer, with the reason; by UID.

    So do those that were sent home when the job was suspended: that it is resumed comes too late for them.
    """
    found = {}
    sent_home = {m.uid for m in world.members if m.leaving == names.SUSPENDED}
    for pod in seen.pods:
        reason = policy.departure(pod, seen.nodes.get(pod.node), seen.agents.get(pod.uid))
        if pod.uid in sent_home and reason is None:
            reason = policy.Departure(names.SUSPENDED)
        if pod.uid in mute and reason is None:
            reason = policy.Departure("unresponsive")
        if reason and not pod.terminal:
            found[pod.uid] = reason
    return found


def _is_spent(pod: Pod, needed: set[str]) -> bool:
    """A pod that succeeded is kept where it belongs to the last world: it is the proof."""
    return pod.terminal and (pod.phase is PodPhase.FAILED or pod.uid not in needed)


def sizes_of(spec: api.Spec) -> Sizes:
    elastic = spec.elastic_policy
    values = tuple(elastic.replica_discrete_values or ())
    return Sizes(spec.min_replicas, spec.wanted, elastic.replica_increment_step, values)


def count_wanted(seen: Seen, spec: api.Spec, status: api.Status, room: api.CapacityStatus) -> int:
    """How many live pods there should be; members that have ended well are not replaced and nobody joins them."""
    world = status.rendezvous
    ended = find_succeeded(seen, world)
    if ended or world.succeeded:
        return len(world.members) - len(ended)
    size = sizes_of(spec).legal(spec.wanted) or spec.wanted
    return max(spec.min_replicas, size + spec.elastic_policy.spares - room.withdrawn)


def find_succeeded(seen: Seen, world: api.RendezvousStatus) -> list[api.Member]:
    """The members of this world that have ended well."""
    pods = {p.uid: p for p in seen.pods}
    return [
        m
        for m in world.members
        if m.uid in pods and ended_well(m, pods[m.uid], seen.agents.get(m.uid), world.generation)
    ]


def plan_deletions(seen: Seen, status: api.Status, fleet: Fleet, judged: Sequence[Judged] = ()) -> tuple[Deletion, ...]:
    """Pods to delete. A member goes only after the world went on without it; a failed one only once it is counted."""
    stuck = {j.member.uid: j.why for j in judged if _is_stuck(j)}
    members = {m.uid for m in (*status.rendezvous.members, *seen.job.status.rendezvous.members)}
    found: list[Deletion] = []
    for pod in seen.pods:
        if pod.uid in fleet.forced:
            found.append(Deletion(pod.name, pod.uid, "its node or its processes do not answer", force=True))
        elif pod.deleting is not None:
            continue
        elif pod.uid in fleet.spent:
            if pod.uid in status.restarts.counted or pod.phase is PodPhase.SUCCEEDED:
                found.append(Deletion(pod.name, pod.uid, "it has ended"))
        elif pod.uid in stuck:
            found.append(Deletion(pod.name, pod.uid, stuck[pod.uid]))
        elif pod.uid in fleet.mute:
            found.append(Deletion(pod.name, pod.uid, "its agent does not answer"))
        elif pod.uid in members:
            continue
        elif fleet.leaving(pod):
            found.append(Deletion(pod.name, pod.uid, fleet.leaving(pod)))
    return tuple(found)


def _is_stuck(judged: Judged) -> bool:
    """Lost although its agent answers: it does not start or stop its workers, and will not do so another time."""
    worker = judged.worker
    if judged.standing is not Standing.LOST or worker is None or worker.agent is None:
        return False
    return worker.pod.live and worker.agent.connected and worker.agent.state.phase is not wire.AgentPhase.FAILED


def dismiss(seen: Seen, status: api.Status, fleet: Fleet) -> dict[str, wire.Directive]:
    """Agents that are not needed any more: outside the world with pods that go, or with their work done before."""
    members = {m.uid for m in (*status.rendezvous.members, *seen.job.status.rendezvous.members)}
    going = fleet.victims | set(fleet.departing)
    told: dict[str, wire.Directive] = {}
    for uid, agent in seen.agents.items():
        if not agent.connected or uid in members:
            continue
        if uid in status.rendezvous.succeeded:
            told[uid] = wire.Stop(reason="completed")
        elif uid in going:
            told[uid] = wire.Stop(reason="not-wanted")
    return told
