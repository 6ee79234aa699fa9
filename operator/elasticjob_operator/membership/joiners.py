"""Joiners: agents that are ready outside the world, and how many more will be ready soon. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership import groups
from elasticjob_operator.membership.member_health import MemberVerdict, Situation, Worker
from elasticjob_operator.model import topology
from elasticjob_operator.model.observe import Pod


def find_joiners(situation: Situation, verdicts: Sequence[MemberVerdict]) -> list[Worker]:
    """Ready agents outside the world that may join, ordered by replica index, those of one place together."""
    members = {j.member.uid for j in verdicts}
    found = [
        w
        for w in sorted(situation.workers, key=lambda w: w.pod.index)
        if w.pod.uid not in members and w.pod.live and not w.leaving and is_ready(w) and has_code(w, situation)
    ]
    return topology.sort_by_place(found, lambda w: w.place)


def choose(situation: Situation, survivors: Sequence[Worker], coming: Sequence[Worker], size: int) -> list[Worker]:
    """The members of the next world, of `size` pods, in the order of their ranks.

    Survivors keep their order, and joiners are appended. If a copy of the model needs several pods, survivors keep
    their places in the copies, and joiners fill these.
    """
    candidates = {w.pod.uid: w for w in (*survivors, *coming)}
    chosen = groups.choose(
        [m.uid for m in situation.world.members],
        [w.pod.uid for w in survivors],
        [w.pod.uid for w in coming],
        size,
        situation.layout,
        places={uid: w.place for uid, w in candidates.items()},
        parts={w.pod.uid: w.agent.state.shards for w in survivors if w.agent},
        replaced=frozenset(w.pod.uid for w in survivors if w.replaced),
    )
    return [candidates[uid] for uid in chosen]


def is_ready(worker: Worker) -> bool:
    agent = worker.agent
    return (
        agent is not None
        and agent.connected
        and agent.state.phase is AgentPhase.READY
        and agent.state.store is not None
    )


def has_code(worker: Worker, situation: Situation) -> bool:
    """Whether it can run the code of the next world."""
    codes = worker.agent.state.codes if worker.agent else ()
    return situation.code is None or situation.code.digest in ("", *codes)


def count_coming(situation: Situation, verdicts: Sequence[MemberVerdict]) -> int:
    """How many more pods may be ready soon, without those waiting for capacity, an image or a corrected command."""
    members = {j.member.uid for j in verdicts}
    others = [w for w in situation.workers if w.pod.uid not in members and w.pod.live and not w.leaving]
    return situation.missing + sum(1 for w in others if not is_ready(w) and is_on_its_way(w.pod, situation))


def is_on_its_way(pod: Pod, situation: Situation) -> bool:
    """Whether this pod waits for nothing that may take long."""
    if pod.unschedulable is not None:
        return False
    if pod.waiting in ("ContainerCreating", "PodInitializing") or (
        pod.scheduled is not None and not pod.started and not pod.waiting
    ):
        return situation.now < (pod.scheduled or pod.created) + situation.settings.creating
    return not pod.waiting
