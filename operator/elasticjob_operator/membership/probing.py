"""The check of the network before pods join: who measures what, and who passes. Pure.

Pods that start together are checked together. Each measures the links to two others: the next one in a ring over the
nodes, and the one half-way round it. All links of all agents are judged at once, by `links`. A pod that joins a world
is measured with two of its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.membership import joiners, links
from elasticjob_operator.membership.member_health import Situation, Worker
from elasticjob_operator.times import format_time

PARTNERS = 2
MOST_RECORDS = 32
PATIENCE = 60.0  # seconds that pods which can be measured wait for others that are being checked


@dataclass(frozen=True, slots=True)
class Probing:
    directives: Mapping[str, wire.Directive] = field(default_factory=dict)  # by pod UID
    wake_at: float | None = None
    accuses: bool = False


def decide(situation: Situation) -> Probing:
    """What to tell the agents that are being checked."""
    able = [w for w in sorted(situation.workers, key=lambda w: w.pod.index) if _find_check(w) is not None]
    waiting = [w for w in able if _is_waiting(w)]
    if not waiting:
        return Probing()
    until = _wait_until(situation, waiting)
    if until is not None and situation.now < until:
        return Probing(wake_at=until)
    ring = _Ring(able)
    wanted = {w.pod.uid: ring.choose_peers(w) for w in waiting}
    if any(wanted.values()):
        return Probing({uid: wire.Probe(peers=tuple(_peer(w) for w in peers)) for uid, peers in wanted.items()})
    guilty = links.find_guilty(list_measures(able))
    reasons = {w.pod.uid: guilty.get(w.pod.node) for w in waiting}
    told = {uid: wire.Probe(passed=why is None, reason=why or "") for uid, why in reasons.items()}
    return Probing(told, accuses=any(reasons.values()))


def list_measures(workers: Sequence[Worker]) -> list[links.Measure]:
    """What these agents have measured with each other, by node."""
    nodes = {w.pod.uid: w.pod.node for w in workers}
    found = []
    for one in workers:
        check = _find_check(one)
        for link in check.links if check else ():
            other = nodes.get(link.uid, "")
            if other and other != one.pod.node and (link.problem or link.seconds is not None):
                found.append(
                    links.Measure(
                        one.pod.node,
                        other,
                        link.seconds or 0.0,
                        link.bytes_per_second or 0.0,
                        link.clock_seconds or 0.0,
                        link.problem or "",
                    )
                )
    return found


def record(before: Sequence[api.PreflightStatus], situation: Situation) -> list[api.PreflightStatus]:
    """The results by node, for the status: those of the nodes that are checked now, and older ones of others."""
    measures = list_measures(situation.workers)
    guilty = links.find_guilty(measures)
    sound: dict[str, list[links.Measure]] = {node: [] for one in measures for node in one.nodes}
    for one in measures:
        for node in () if one.problem else one.nodes:
            sound[node].append(one)
    found: dict[str, api.PreflightStatus] = {}
    for node, own in sorted(sound.items()):
        found[node] = api.PreflightStatus(
            node=node,
            passed=node not in guilty,
            round_trip_seconds=round(min(one.seconds for one in own), 6) if own else None,
            bytes_per_second=round(max(one.bytes_per_second for one in own)) if own else None,
            message=guilty.get(node),
            time=format_time(situation.now),
        )
    same = {
        one.node: one
        for one in before
        if one.node not in found or one.model_copy(update={"time": found[one.node].time}) == found[one.node]
    }
    return sorted((found | same).values(), key=lambda one: (one.passed, one.node))[:MOST_RECORDS]


def _find_check(worker: Worker) -> wire.Preflight | None:
    """The check of this pod's network, if its agent can take part in one."""
    agent = worker.agent
    if agent is None or not agent.connected or not worker.pod.live or worker.leaving or not worker.pod.node:
        return None
    return None if agent.state.phase is AgentPhase.FAILED else agent.state.preflight


def _is_waiting(worker: Worker) -> bool:
    check = _find_check(worker)
    return check is not None and not check.over


def _wait_until(situation: Situation, waiting: Sequence[Worker]) -> float | None:
    """Until when to wait for others that can soon be measured too; None: for nobody."""
    coming = [w for w in situation.workers if _is_coming(w, situation)]
    if not coming and not situation.missing:
        return None
    since = min(w.agent.state_since for w in waiting if w.agent is not None)
    checks = any(w.agent is not None and w.agent.connected for w in coming)
    return since + (PATIENCE if checks else situation.settings.join_patience)


def _is_coming(worker: Worker, situation: Situation) -> bool:
    """Whether this pod's agent may soon be able to take part: it has not begun, or its own checks go on."""
    agent = worker.agent
    if worker.leaving or not worker.pod.live or (agent is not None and agent.state.preflight is not None):
        return False
    is_new = agent is None or (agent.state.phase is AgentPhase.STARTING and agent.state.generation == 0)
    return is_new and joiners.is_on_its_way(worker.pod, situation)


class _Ring:
    """The nodes in the order in which their pods are numbered, and the pods of each that can be measured."""

    def __init__(self, able: Sequence[Worker]) -> None:
        self._pods: dict[str, list[Worker]] = {}
        for one in able:
            self._pods.setdefault(one.pod.node, []).append(one)
        self._nodes = list(self._pods)
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._node_of = {one.pod.uid: one.pod.node for one in able}

    def choose_peers(self, worker: Worker) -> list[Worker]:
        """The pods that this one still has to be measured with, on other nodes."""
        check, node, size = _find_check(worker), worker.pod.node, len(self._nodes)
        measured = {self._node_of.get(link.uid, node) for link in (check.links if check else ())} - {node}
        left = min(PARTNERS, size - 1) - len(measured)
        chosen: list[Worker] = []
        # From three nodes on, the first two are other nodes.
        for step in (1, max(2, size // 2), *range(1, size)):
            other = self._nodes[(self._places[node] + step) % size]
            if len(chosen) >= left:
                break
            if other not in measured and other != node:
                measured.add(other)
                pods = self._pods[other]
                chosen.append(pods[worker.pod.index % len(pods)])
        return chosen


def _peer(worker: Worker) -> wire.Peer:
    check, agent = _find_check(worker), worker.agent
    assert check is not None and agent is not None, "only pods that can be measured are chosen"
    return wire.Peer(uid=worker.pod.uid, address=agent.state.address or worker.pod.ip, port=check.port)
