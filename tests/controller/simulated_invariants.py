"""The invariants of the simulated cluster at every step, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.failures import incidents
from elasticjob_operator.history import goodput
from elasticjob_operator.plan.plan import Plan, Seen

if TYPE_CHECKING:
    from controller.simulated_cluster import Cluster


def _lasting(status: api.Status) -> dict[str, object]:
    """What of a finished job's status never changes: all but its pods, and the log that they leave behind."""
    failure = status.last_failure
    if failure is not None:
        status = status.model_copy(update={"last_failure": _without_log(failure)})
    failures = [_without_log(one) for one in status.failures]
    return status.model_copy(update={"replicas": 0, "failures": failures}).dump()


def _without_log(failure: api.FailureStatus) -> api.FailureStatus:
    return failure.model_copy(update={"log_tail": None})


class Invariants:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check_plan(self, seen: Seen, made: Plan) -> None:
        before = seen.job.status
        if before.finished:
            self._check_finished(before, made)
            return
        self._check_pods(seen, made)
        self._check_directives(made)
        if made.status.rendezvous.generation > before.rendezvous.generation:
            self._check_new_world(seen, made)
        self.check_truth()

    def check_status(self, before: api.Status, after: api.Status) -> None:
        assert after.rendezvous.generation >= before.rendezvous.generation, "generations only grow"
        assert after.restarts.total >= before.restarts.total, "restarts are never forgotten"
        losses = sum(seconds for _, seconds in goodput.list_losses(after))
        assert abs(losses - after.goodput.lost_seconds) < 0.1, "the categories add up to the lost time"
        generations = [world.generation for world in after.timeline]
        assert generations == sorted(set(generations)), "each world is in the timeline once"
        if after.rendezvous.generation:
            assert generations[-1] == after.rendezvous.generation, "the timeline has every world"
        if before.finished:
            assert _lasting(after) == _lasting(before)

    def _check_finished(self, before: api.Status, made: Plan) -> None:
        assert not made.create, "a finished job gets no pods"
        assert not made.ensure, "a finished job gets no objects"
        self.check_status(before, made.status)

    def _check_pods(self, seen: Seen, made: Plan) -> None:
        spec = seen.job.spec
        assert spec is not None
        doomed = {d.uid for d in made.delete}
        if made.create:
            leaving = {n for n, node in seen.nodes.items() if node.leaving or node.cordoned}
            replaced = {s.uid for s in made.status.stragglers if s.replace_time is not None}
            assert len(replaced) <= 1, "one pod at a time is replaced for its slowness"
            replaced |= {*incidents.replaced(made.status)}
            staying = [
                p
                for p in seen.pods
                if p.live
                and p.uid not in replaced
                and not p.disruption
                and not p.sick_device
                and p.uid not in doomed
                and p.node not in leaving
                and not self._leaves(seen, p.uid)
            ]
            limit = spec.max_replicas + spec.elastic_policy.spares
            unresponsive = sum(1 for p in staying if p.uid in seen.agents and not seen.agents[p.uid].connected)
            assert len(staying) - unresponsive + len(made.create) <= limit, "more pods than max"
        indices = [n.index for n in made.create]
        assert len(set(indices)) == len(indices), "an index twice"
        assert not set(indices) & {p.index for p in seen.pods}, "an index that exists"
        self._check_deletions(seen, made)

    def _check_deletions(self, seen: Seen, made: Plan) -> None:
        """Never below min by our own hand: what runs in the present world is not deleted."""
        if seen.job.spec and seen.job.spec.run_policy.suspend:
            return
        ended = {p.uid for p in seen.pods if p.terminal}
        for deletion in made.delete:
            agent = seen.agents.get(deletion.uid) if deletion.uid not in ended else None
            current = made.status.rendezvous
            trains = (
                agent is not None
                and agent.connected
                and agent.state.phase in (AgentPhase.RUNNING, AgentPhase.LEAVING)
                and agent.state.generation == current.generation
                and any(m.uid == deletion.uid for m in current.members)
            )
            assert not trains or "did not stop" in deletion.why, f"{deletion.name} still trains: {deletion.why}"

    def _leaves(self, seen: Seen, uid: str) -> bool:
        """It is on its way out by itself, or was sent home before the job was resumed."""
        if any(m.uid == uid and m.leaving == names.Cause.SUSPENDED for m in seen.job.status.rendezvous.members):
            return True
        agent = seen.agents.get(uid)
        return agent is not None and agent.state.phase in (AgentPhase.LEAVING, AgentPhase.SUCCEEDED)

    def _check_directives(self, made: Plan) -> None:
        for uid, directive in made.directives.items():
            if isinstance(directive, wire.World):
                world = made.status.rendezvous
                assert directive.generation == world.generation, "only the present generation is announced"
                assert world.members[directive.rank].uid == uid, "everybody gets its own rank"
                assert directive.store.port == (world.store.port if world.store else None)

    def _check_new_world(self, seen: Seen, made: Plan) -> None:
        spec, before, after = seen.job.spec, seen.job.status.rendezvous, made.status.rendezvous
        assert spec is not None
        assert after.generation == before.generation + 1, "no generation is skipped"
        assert made.announces, "a generation is persisted before it is announced"
        assert len({m.uid for m in after.members}) == len(after.members), "a member twice"
        assert [m.rank for m in after.members] == list(range(len(after.members)))
        if not after.succeeded:
            assert spec.min_replicas <= len(after.members) <= spec.max_replicas, "a world within its bounds"
        old = {m.uid: m.rank for m in before.members}
        ranks = [old[m.uid] for m in after.members if m.uid in old]
        assert ranks == sorted(ranks), "survivors keep their order"
        if ranks:
            assert after.members[0].uid in old, "rank 0 is a survivor"
        for uid in old:
            agent = seen.agents.get(uid)
            real = self._cluster.pods[uid].agent if uid in self._cluster.pods else None
            if real is None or real.deaf:
                continue  # it was told to stop and did not listen, for as long as patience lasts
            if agent is not None and agent.connected and not agent.mute and agent.state.phase is AgentPhase.RUNNING:
                assert agent.state.generation != before.generation, "a member of the old world still runs"

    def check_truth(self) -> None:
        """There are never two complete worlds at once, whatever the operator observes."""
        running: dict[int, set[str]] = {}
        sizes: dict[int, int] = {}
        for pod in self._cluster.pods.values():
            agent = pod.agent
            if agent is not None and agent.alive and agent.phase is AgentPhase.RUNNING and agent.world is not None:
                running.setdefault(agent.generation, set()).add(pod.uid)
                sizes[agent.generation] = len(agent.world.members)
        whole = [g for g, uids in running.items() if len(uids) == sizes[g]]
        assert len(whole) <= 1, f"two worlds at once: {whole}"
