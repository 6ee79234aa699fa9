"""Joiners: agents that are ready outside the world, and how many more will be ready soon. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
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
    world, places = [m.uid for m in situation.world.members], {uid: w.place for uid, w in candidates.items()}
    out = _find_out(situation, survivors, coming, size)
    chosen = [uid for uid in candidates if uid not in out]
    return [candidates[uid] for uid in groups.seat(world, chosen, situation.layout, places)]


def _find_out(situation: Situation, survivors: Sequence[Worker], coming: Sequence[Worker], size: int) -> set[str]:
    """Who stays out of the next world, if there are too many.

    Those to be replaced do first, then joiners, then survivors: those of copies that lack some, and always the last
    ones; but not a survivor that alone has a part of the state in memory, as long as another one can stay out instead.
    """
    surplus = len(survivors) + len(coming) - size
    if surplus <= 0:
        return set()
    parts = _find_parts(survivors)
    holders = Counter(itertools.chain.from_iterable(parts.values()))
    slow = [w.pod.uid for w in reversed(survivors) if w.replaced]
    healthy, world = frozenset(parts).difference(slow), [m.uid for m in situation.world.members]
    best = groups.sort_to_keep(world, healthy, size // situation.layout.pods, situation.layout)
    order = [*slow, *(w.pod.uid for w in reversed(coming)), *reversed(best)]
    out: set[str] = set()
    for is_forced, uid in itertools.product((False, True), order):
        mine = parts.get(uid, frozenset())
        if len(out) < surplus and uid not in out and (is_forced or all(holders[part] > 1 for part in mine)):
            out.add(uid)
            holders.subtract(mine)
    return out


def _find_parts(survivors: Sequence[Worker]) -> dict[str, frozenset[int]]:
    """The parts of the training state that each of them has in memory, by UID: the whole one, unless it is sharded."""
    shards = {w.pod.uid: frozenset(w.agent.state.shards if w.agent else ()) for w in survivors}
    return shards if any(shards.values()) else dict.fromkeys(shards, frozenset((0,)))


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
