"""Membership of jobs with torch's own rendezvous. They have no agents, so only pod phases are known. Pure."""

from __future__ import annotations

from elasticjob_operator import api
from elasticjob_operator.api.names import Cause
from elasticjob_operator.membership.decide import Decision, State
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Worker
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.model.observe import Pod, count_processes
from elasticjob_operator.plan.values import Seen
from elasticjob_operator.times import format_time


def judge(seen: Seen, status: api.Status) -> tuple[MemberVerdict, ...]:
    """The health of the members of the last world."""
    pods = {p.uid: p for p in seen.pods}
    return tuple(_judge_member(m, pods.get(m.uid)) for m in status.rendezvous.members)


def _judge_member(member: api.Member, pod: Pod | None) -> MemberVerdict:
    if pod is None:
        return MemberVerdict(member, MemberHealth.LOST, None, "its pod is gone")
    if pod.phase is PodPhase.SUCCEEDED:
        return MemberVerdict(member, MemberHealth.SUCCEEDED, Worker(pod))
    if pod.phase is PodPhase.FAILED:
        return MemberVerdict(member, MemberHealth.LOST, Worker(pod), "its pod failed")
    return MemberVerdict(member, MemberHealth.STOPPED, Worker(pod))  # it has no agent whose stop must be awaited


def decide(seen: Seen, spec: api.Spec, status: api.Status) -> Decision:
    """The world is the set of running pods; the workers find each other."""
    before = status.rendezvous
    done = [p for p in seen.pods if p.phase is PodPhase.SUCCEEDED]
    running = [p for p in seen.pods if p.phase is PodPhase.RUNNING and p.live]
    chosen = sorted([*running, *done], key=lambda p: p.index)
    if done and before.members:
        return Decision(State.ENDING, "members are finishing")
    if len(chosen) < spec.min_replicas:
        return Decision(State.WAITING, f"{len(chosen)} of at least {spec.min_replicas} pods are running")
    if [m.uid for m in before.members] == [p.uid for p in chosen]:
        return Decision(State.RUNNING, "torch's own rendezvous")
    members = [
        api.Member(pod=p.name, uid=p.uid, node=p.node, rank=rank, address=p.ip or None, nproc=count_processes(spec, p))
        for rank, p in enumerate(chosen)
    ]
    world = api.RendezvousStatus(
        generation=before.generation + 1,
        world_size=len(members),
        processes=sum(m.nproc for m in members),
        members=members,
        formed_time=format_time(seen.now),
        reason=Cause.PODS_CHANGED if before.members else Cause.START,
    )
    return Decision(State.RUNNING, "torch's own rendezvous", world=world)
