"""Random histories of the simulated cluster: the invariants hold at every step, and the job recovers when the faults
stop.

`pytest --hypothesis-profile=long` tries thousands of histories; the normal run tries the same few every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from controller.builders import make_spec
from controller.simulated_agent import SimAgent
from controller.simulated_cluster import Cluster, SimPod
from examples import tries

seconds = st.sampled_from([0.05, 0.3, 1.0, 3.0, 7.0, 20.0, 45.0, 100.0])
pick = st.integers(min_value=0, max_value=30)
NEIGHBOURS: Final[dict[str, object]] = {"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}
STAGES: Final[dict[str, object]] = {"mesh": [{"name": "pp", "size": 2}, {"name": "dp"}]}


class Histories(RuleBasedStateMachine):
    cluster: Cluster

    @initialize(
        low=st.integers(1, 3),
        more=st.integers(0, 3),
        nodes=st.integers(1, 6),
        spares=st.sampled_from([0, 0, 1]),
        legal=st.sampled_from([{}, {}, {"replicaIncrementStep": 2}, NEIGHBOURS, STAGES]),
        notice=st.sampled_from([0.1, None]),
        rank0=st.booleans(),
    )
    def start(
        self,
        low: int,
        more: int,
        nodes: int,
        spares: int,
        legal: dict[str, object],
        notice: float | None,
        rank0: bool,
    ) -> None:
        elastic: dict[str, object] = {"spares": spares, "maxRestarts": 1000, **legal}
        success = "Rank0" if rank0 else "All"
        spec = make_spec(low, low + max(more, low % 2), elasticPolicy=elastic, successPolicy=success)
        self.cluster = Cluster(spec, nodes=nodes, notice=notice)
        self.cluster.run(5)

    def teardown(self) -> None:
        if hasattr(self, "cluster") and not self.cluster.deleted:
            self._heal()
            self._check_all_is_well()

    # Time and the operator.

    @rule(time=seconds)
    def wait(self, time: float) -> None:
        self.cluster.run(time)

    @rule(away=seconds)
    def restart_operator(self, away: float) -> None:
        self.cluster.restart_operator(away)

    @rule(writes=st.integers(0, 6))
    def crash_between_writes(self, writes: int) -> None:
        self.cluster.crash_after = writes

    # Pods and agents.

    def _pod(self, number: int, fits: Callable[[SimPod], bool] = lambda pod: True) -> SimPod | None:
        pods = [p for p in self.cluster.pods.values() if fits(p)]
        return pods[number % len(pods)] if pods else None

    def _agent(self, number: int) -> SimAgent | None:
        pod = self._pod(number, lambda p: p.agent is not None and p.agent.alive and not p.agent.paused)
        return pod.agent if pod else None

    @rule(number=pick, code=st.sampled_from([0, 1, 137, 143]))
    def end_process(self, number: int, code: int) -> None:
        agent = self._agent(number)
        members = {m.uid for m in self.cluster.status.rendezvous.members}
        # A member that ends with exit code 0 without a word has succeeded, a first pod that does so never joins.
        if agent and (code or (members and agent.pod.uid not in members)):
            agent.exit(code)

    @rule(number=pick)
    def fail_worker(self, number: int) -> None:
        agent = self._agent(number)
        if agent:
            agent.fail()

    @rule(number=pick, time=seconds)
    def pause(self, number: int, time: float) -> None:
        agent = self._agent(number)
        if agent:
            self.cluster.pause_agent(agent, time)

    @rule(number=pick)
    def deafen(self, number: int) -> None:
        agent = self._agent(number)
        if agent:
            agent.deaf = True

    @rule(number=pick, grace=st.sampled_from([0.0, 1.0, 35.0]))
    def delete_pod(self, number: int, grace: float) -> None:
        pod = self._pod(number)
        if pod:
            self.cluster.delete_pod(pod.uid, force=grace == 0.0, grace=grace)

    @rule(number=pick)
    def evict(self, number: int) -> None:
        pod = self._pod(number, lambda p: not p.record.terminal)
        if pod:
            pod.update(disruption="EvictionByEvictionAPI")
            self.cluster.delete_pod(pod.uid)

    @rule(number=pick, device=st.sampled_from(["", "nvidia.com/gpu GPU-1"]))
    def spoil_device(self, number: int, device: str) -> None:
        pod = self._pod(number, lambda p: not p.record.terminal)
        if pod:
            pod.update(sick_device=device)

    @rule(behaviour=st.sampled_from(["slow", "pull-error", "exit1", "bad-command"]), index=st.integers(0, 6))
    def spoil_next_container(self, behaviour: str, index: int) -> None:
        if self.cluster.generation or behaviour != "bad-command":
            self.cluster.behaviours[index] = behaviour

    @rule(number=pick)
    def cut_off(self, number: int) -> None:
        agent = self._agent(number)
        if agent:
            self.cluster.cut_off(agent)

    @rule()
    def heal_partition(self) -> None:
        self.cluster.heal_partition()

    @precondition(lambda self: self.cluster.trains)
    @rule(number=pick)
    def succeed(self, number: int) -> None:
        agent = self._agent(number)
        if agent:
            agent.succeed()

    # Nodes.

    def _node(self, number: int) -> str | None:
        names = sorted(self.cluster.nodes)
        return names[number % len(names)] if names else None

    @rule(slots=st.integers(1, 2))
    def add_node(self, slots: int) -> None:
        if len(self.cluster.nodes) < 8:
            self.cluster.ports += 1
            self.cluster.add_node(f"extra{self.cluster.ports}", slots)

    @rule(number=pick, what=st.sampled_from(["kill", "revive", "remove", "cordon", "uncordon", "taint", "unready"]))
    def change_node(self, number: int, what: str) -> None:
        name, cluster = self._node(number), self.cluster
        if name is None:
            return
        if what == "kill":
            cluster.kill_node(name)
        elif what == "revive":
            cluster.revive_node(name)
        elif what == "remove":
            cluster.remove_node(name)
        elif what == "unready":
            cluster.change_node(name, ready=False, not_ready_since=cluster.now)
        else:
            changes: dict[str, dict[str, object]] = {
                "cordon": {"cordoned": True},
                "uncordon": {"cordoned": False},
                "taint": {"leaving": "spot"},
            }
            cluster.change_node(name, **changes[what])

    # The user.

    @rule(wanted=st.integers(0, 6))
    def scale(self, wanted: int) -> None:
        spec = self.cluster.spec
        self.cluster.edit(replicas=min(spec.max_replicas, max(spec.min_replicas, wanted)))

    @rule(low=st.integers(1, 4), more=st.integers(0, 3))
    def resize(self, low: int, more: int) -> None:
        high = low + max(more, low % 2)  # there is always a whole copy of two pods
        self.cluster.edit(min=low, max=high, replicas=high)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.cluster.edit(suspend=suspend)

    # When the faults stop.

    def _heal(self) -> None:
        cluster = self.cluster
        cluster.crash_after = None
        cluster.mend_images()
        if not cluster.operator_up:
            cluster.start_operator()
        for name in list(cluster.nodes):
            cluster.revive_node(name)
            cluster.change_node(name, cordoned=False, leaving="")
        for number in range(8):
            cluster.add_node(f"healthy{number}", 2)
        cluster.heal_partition()
        cluster.edit(suspend=False)
        cluster.run(1500)

    def _check_all_is_well(self) -> None:
        cluster, spec = self.cluster, self.cluster.spec
        if cluster.status.is_true("Failed"):
            reason = cluster.condition("Failed")[1]
            raise AssertionError(f"nothing here is a reason to fail: {reason}")
        if not cluster.status.finished:
            ended = cluster.status.rendezvous.succeeded
            if not ended and not any(p.agent and p.agent.phase == "succeeded" for p in cluster.pods.values()):
                assert cluster.trains, f"it does not train: {cluster.describe()}"
                step = spec.layout.step if spec.elastic_policy.mesh else spec.elastic_policy.replica_increment_step or 1
                size = spec.wanted - (spec.wanted - spec.min_replicas) % step
                assert cluster.size == size, f"{size} wanted: {cluster.describe()}"
                live = [p for p in cluster.pods.values() if p.record.live]
                assert len(live) == size + spec.elastic_policy.spares, f"no orphan: {cluster.describe()}"
            cluster.finish()
            cluster.run(100)
            assert cluster.status.is_true("Complete"), f"it does not end: {cluster.describe()}"
        assert all(p.record.terminal or p.record.deleting for p in cluster.pods.values())


TestHistories = Histories.TestCase
TestHistories.settings = settings(tries(few=20, many=40), suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.timeout(0)
