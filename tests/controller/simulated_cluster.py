"""A cluster in memory: API objects as the operator's own records, a scheduler, kubelets, agents, a hub, and time.

It applies each plan in the same order as `apply`, checks the invariants at every step and advances the time. Nothing
here makes decisions about jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from controller.builders import make_spec
from controller.simulated_agent import FAILED, LEAVING, RUNNING, SUCCEEDED, Pace, SimAgent, lose
from controller.simulated_invariants import Invariants
from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.failures import health_watch
from elasticjob_operator.model import reading
from elasticjob_operator.model.containers import Exit, PodPhase
from elasticjob_operator.model.observe import Agent, Job, Node, Pod
from elasticjob_operator.plan.plan import Config, Plan, Seen, plan
from elasticjob_operator.plan.reporting import Event
from elasticjob_operator.times import format_time


class CrashError(Exception):
    """The operator dies between two writes."""


@dataclass
class SimNode:
    name: str
    slots: int
    alive: bool = True  # its processes run
    record: Node = field(default_factory=lambda: Node(""))


@dataclass
class SimPod:
    record: Pod
    avoid: tuple[str, ...] = ()
    agent: SimAgent | None = None
    behaviour: str = ""  # what its container does, see Cluster.behaviours

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def ip(self) -> str:
        return self.record.ip

    def update(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)


class Cluster:
    def __init__(self, spec: api.Spec | None = None, *, nodes: int = 4, slots: int = 1, **pace: Any) -> None:
        self.now = 1_000_000.0
        self.pace = Pace(**pace)
        self.config = Config()
        self.spec = spec or make_spec()
        self.raw_generation = 1
        self.status = api.Status()
        self.has_replicas = False
        self.deleted = False
        self.deleting = False
        self.nodes: dict[str, SimNode] = {}
        self.pods: dict[str, SimPod] = {}
        self.children: set[tuple[str, str, str]] = set()
        self.agents: dict[str, Agent] = {}  # what the hub knows
        self.told: dict[str, wire.Directive] = {}
        self.hub_started = self.now
        self.operator_up = True
        self.writes = 0
        self.crash_after: int | None = None  # writes until the operator dies
        self.stale_pods: tuple[Pod, ...] | None = None  # what a first pass after a restart sees
        self.behaviours: dict[int, str] = {}  # by index: what the next container with it does
        self.unfit: set[str] = set()  # nodes on which the preflight fails
        self.bad_links: set[str] | None = None  # nodes with a slow network; None: agents do not check the network
        self.step_seconds: dict[str, float] = {}  # by node: the own time of a step that its agents report
        self.reports: Callable[[SimAgent], dict[str, Any] | None] = lambda agent: None  # what else its script reports
        self.health: health_watch.Memory = {}
        self.default_behaviour = ""
        self.ports = 40_000
        self.made = 0
        self.wake_at: float | None = None
        self.rested: tuple[Seen, Config, bool] | None = None  # what the operator saw when nothing was left to do
        self.plans: list[Plan] = []
        self.events: list[Event] = []
        self.created: list[str] = []
        self.removed: list[tuple[str, str, bool]] = []  # (name, why, force)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.invariants = Invariants(self)
        for i in range(nodes):
            self.add_node(f"node{i}", slots)

    # Time.

    @property
    def second(self) -> float:
        """The time as objects of the API server tell it."""
        return float(int(self.now))

    def after(self, delay: float, run: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, run))

    def run(self, seconds: float) -> None:
        """Advance the time; every event wakes the operator."""
        end = self.now + seconds
        self.schedule()
        self.settle()
        while self._step(end):
            pass
        self.now = end

    def jump(self, seconds: float) -> None:
        """Set the clock; running activities and timers are unaffected."""
        self.now += seconds
        self._queue = [(at + seconds, count, run) for at, count, run in self._queue]
        self.wake_at = None if self.wake_at is None else self.wake_at + seconds

    def run_until(self, condition: Callable[[], bool], limit: float = 300.0) -> float:
        """Advance the time until the condition holds; return the elapsed seconds."""
        start = self.now
        self.schedule()
        self.settle()
        while not condition():
            assert self._step(start + limit), f"not within {limit} s: {self.describe()}"
        return self.now - start

    def _step(self, end: float) -> bool:
        """The next thing that happens, if it happens before `end`."""
        event = self._queue[0][0] if self._queue else None
        wake = self.wake_at if self.operator_up else None
        times = [t for t in (event, wake) if t is not None and t <= end]
        if not times:
            return False
        self.now = max(self.now, min(times))
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
            self.schedule()
        self.settle()
        return True

    def describe(self) -> str:
        reason = self.plans[-1].reason if self.plans else ""
        pods = {p.name: (p.record.phase.value, p.agent.phase.value if p.agent else "-") for p in self.pods.values()}
        return f"{self.status.phase} {reason!r} world={[m.pod for m in self.status.rendezvous.members]} {pods}"

    # The operator.

    def seen(self) -> Seen:
        spec, notices = reading.keep_in_force(self.spec, self.status)
        job = Job(
            namespace="default",
            name="digits",
            uid="job-uid",
            spec=spec,
            status=self.status,
            notices=notices,
            generation=self.raw_generation,
            deleting=self.deleting,
            has_replicas=self.has_replicas,
        )
        pods = tuple(p.record for p in self.pods.values())
        if self.stale_pods is not None:
            pods, self.stale_pods = self.stale_pods, None
        agents = dict(self.agents)
        self.health = health_watch.look(self.health, self.spec, self.status, agents, self.now)
        return Seen(
            job=job,
            pods=pods,
            agents=agents,
            health=self.health,
            nodes={name: n.record for name, n in self.nodes.items()},
            children=frozenset(self.children),
            now=self.now,
            hub_started=self.hub_started,
        )

    def settle(self) -> None:
        """Run passes until nothing is left to do at this time."""
        if not self.operator_up or self.deleted:
            return
        for _ in range(12):
            try:
                if self.make_pass():
                    return
            except CrashError:
                self.restart_operator(1.0)
                return
        raise AssertionError(f"the operator does not come to rest: {self.describe()}")

    def make_pass(self) -> bool:
        seen = self.seen()
        if self._rests(seen):
            return True
        made = plan(seen, self.config)
        if self.deletes_refused:
            made = replace(made, delete=())
        if self.deleting:
            return True
        quiet = made.is_idle and made.status == self.status and not self._is_news(made)
        self.invariants.check_plan(seen, made)
        self.plans.append(made)
        self.apply(made)
        self.schedule()
        self.wake_at = made.wake_at
        if quiet:
            assert made.wake_at is None or made.wake_at > self.now, f"wakes in the past: {made.reason}"
            self.rested = seen, self.config, self.deletes_refused
        return quiet or self.deleted

    def _rests(self, seen: Seen) -> bool:
        """Whether nobody would wake the operator: nothing but the time has changed since it came to rest."""
        if self.rested is None or (self.wake_at is not None and self.wake_at <= self.now):
            return False
        before, *rest = self.rested
        return rest == [self.config, self.deletes_refused] and replace(seen, now=before.now) == before

    def _is_news(self, made: Plan) -> bool:
        return any(self.told.get(uid) != d for uid, d in made.directives.items())

    def _write(self) -> None:
        self.writes += 1
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise CrashError

    def apply(self, made: Plan) -> None:
        if not made.announces:
            self.direct(made)
        if made.set_replicas is not None:
            self._write()
            self.spec = self.spec.model_copy(update={"replicas": made.set_replicas})
            self.has_replicas = True
            self.raw_generation += 1
        if made.set_suspend:
            self._write()
            self.edit(suspend=True)
        for child in made.ensure:
            self._write()
            self.children = {c for c in self.children if c[:2] != (child.kind.value, child.name)}
            self.children.add((child.kind.value, child.name, child.digest))
        for new in made.create:
            self._write()
            self._create(new.index, new.avoid)
        if made.status != self.status:
            self._write()
            self.invariants.check_status(self.status, made.status)
            # What is stored is JSON: nothing may rest on what does not survive that.
            self.status = api.Status.model_validate(made.status.dump())
        if made.announces:
            self.direct(made)
        for deletion in made.delete:
            self._write()
            self.removed.append((deletion.name, deletion.why, deletion.force))
            self.delete_pod(deletion.uid, force=deletion.force)
        for resize in made.resize:
            self._write()
            self.pods[resize.uid].update(sizes=resize.sizes)
        for child in made.remove:
            self._write()
            self.children = {c for c in self.children if c[:2] != (child.kind.value, child.name)}
        self.events += made.events
        if made.delete_job:
            self.delete_job()

    def direct(self, made: Plan) -> None:
        for uid, directive in made.directives.items():
            if self.told.get(uid) != directive:
                self.told[uid] = directive
                self._send(uid, directive)

    def _send(self, uid: str, directive: wire.Directive) -> None:
        agent = self.pods[uid].agent if uid in self.pods else None
        if agent is not None and agent.connected:
            found = agent
            self.after(0.01, lambda: found.receive(directive) if found.connected else None)

    def stop_operator(self) -> None:
        """The operator dies and loses its memory."""
        self.operator_up = False
        self.told = {}
        for pod in self.pods.values():
            if pod.agent is not None:
                pod.agent.connected = False
        self.agents, self.health = {}, {}

    def start_operator(self, *, stale: tuple[Pod, ...] | None = None) -> None:
        self.operator_up, self.hub_started, self.stale_pods = True, self.now, stale
        self.rested = None
        for pod in self.pods.values():
            if pod.agent is not None and pod.agent.alive:
                agent = pod.agent
                self.after(self.pace.reconnect, partial(self._reconnect, agent))

    def restart_operator(self, away: float = 1.0) -> None:
        self.stop_operator()
        self.after(away, self.start_operator)

    # The hub.

    def connect(self, agent: SimAgent) -> None:
        if self.operator_up and agent.alive and not self._is_cut(agent):
            agent.connected = True
            self.hear(agent)
            wanted = self.told.get(agent.pod.uid)
            if wanted is not None:
                self._send(agent.pod.uid, wanted)
        elif agent.alive and not self.operator_up:
            pass  # start_operator makes it connect
        elif agent.alive:
            self.after(1.0, lambda: self._reconnect(agent))

    def _reconnect(self, agent: SimAgent) -> None:
        if agent.alive and not agent.connected and not agent.paused:
            self.connect(agent)

    def _is_cut(self, agent: SimAgent) -> bool:
        return agent.pod.uid not in self.pods or agent.pod.uid in self.partitioned

    partitioned: frozenset[str] = frozenset()  # UIDs whose agents do not reach the hub
    deletes_refused: bool = False  # the API server will not delete anything now
    unreachable: frozenset[str] = frozenset()  # UIDs whose stores nobody reaches
    sidecars: bool = False  # pods have a container that runs on when the trainer has ended

    def hear(self, agent: SimAgent) -> None:
        self.agents[agent.pod.uid] = agent.record(self.agents.get(agent.pod.uid))

    def disconnect(self, agent: SimAgent, by: str) -> None:
        if agent.connected:
            agent.connected = False
            known = self.agents.get(agent.pod.uid)
            if known is not None:
                self.agents[agent.pod.uid] = lose(known, by, self.now)

    def _go_silent(self, agent: SimAgent) -> None:
        def notice() -> None:
            if agent.paused or not agent.alive or agent.pod.uid in self.partitioned:
                self.disconnect(agent, "silent")

        self.after(self.pace.silence, notice)

    def listens(self, port: int) -> bool:
        return any(
            p.agent and p.agent.alive and p.agent.port == port and p.uid not in self.unreachable
            for p in self.pods.values()
        )

    def break_world(self, gone: SimAgent) -> None:
        """The peers of a lost worker notice it at their next collective."""
        if self.pace.notice is None:
            return
        for pod in self.pods.values():
            if pod.agent is not None and pod.agent is not gone:
                self.after(self.pace.notice, partial(pod.agent.feel_loss, gone.generation))

    # Pods and nodes.

    def add_node(self, name: str, slots: int = 1) -> None:
        self.nodes[name] = SimNode(name, slots, record=Node(name, place=(name,)))

    def _create(self, index: int, avoid: tuple[str, ...]) -> None:
        name = names.pod_name("digits", index)
        assert all(p.name != name for p in self.pods.values()), f"{name} exists: 409"
        self.made += 1
        record = Pod(
            name=name,
            uid=f"{index}#{self.made}",
            job="digits",
            job_uid="job-uid",
            index=index,
            created=self.second,
            template_hash=self.spec.template_hash,
            template_shape=self.spec.shape.hash,
            sizes=self.spec.shape.sizes,
        )
        behaviour = self.behaviours.pop(index, self.default_behaviour)
        self.pods[record.uid] = SimPod(record, avoid, behaviour=behaviour)
        self.created.append(name)

    def schedule(self) -> None:
        for pod in list(self.pods.values()):
            if pod.record.node or pod.record.terminal:
                continue
            free = [n for n in self.nodes.values() if self._free(n) > 0 and _is_open(n)]
            free.sort(key=lambda n: (n.name in pod.avoid, n.name))
            if not free:
                if pod.record.unschedulable is None:
                    pod.update(unschedulable=self.now, unschedulable_message="0 nodes are available")
                continue
            ip = f"10.0.0.{self.made}"
            pod.update(node=free[0].name, scheduled=self.second, unschedulable=None, unschedulable_message="", ip=ip)
            self.after(0.3, partial(self._start, pod))

    def _free(self, node: SimNode) -> int:
        used = sum(1 for p in self.pods.values() if p.record.node == node.name and not _has_ended(p.record))
        return node.slots - used

    def _start(self, pod: SimPod) -> None:
        if pod.uid not in self.pods or pod.record.deleting is not None or not self._node_lives(pod):
            return
        if pod.behaviour == "pull-error":
            pod.update(waiting="ImagePullBackOff", waiting_message="not found")
        elif pod.behaviour == "bad-command":
            message = 'exec: "trian": executable file not found in $PATH'
            pod.update(phase=PodPhase.FAILED, exit=Exit(128, "StartError", message), lingers=self.sidecars)
        elif pod.behaviour == "rejected":
            pod.update(phase=PodPhase.FAILED, reason="OutOfcpu", message="Pod was rejected: not enough cpu")
        elif pod.behaviour == "init-fails":
            pod.update(phase=PodPhase.FAILED, exit=Exit(1, "Error", "no data", init_container="download"))
        elif pod.behaviour.startswith("exit"):  # and its code
            pod.update(phase=PodPhase.RUNNING, started=True, began=self.second)
            code = int(pod.behaviour.removeprefix("exit"))
            self.after(1.0, lambda: self.kubelet_sees_exit(pod, code, ""))
        elif pod.behaviour == "plain":  # a launcher that knows nothing of us
            pod.update(phase=PodPhase.RUNNING, started=True, began=self.second)
        else:
            pod.update(phase=PodPhase.RUNNING, started=True, began=self.second)
            pod.agent = SimAgent(pod, self)
            pod.agent.later(self.pace.boot + (2.0 if pod.behaviour == "slow" else 0.0), "boot")

    def _node_lives(self, pod: SimPod) -> bool:
        node = self.nodes.get(pod.record.node)
        return node is not None and node.alive

    def kubelet_sees_exit(self, pod: SimPod, code: int, reason: str) -> None:
        if pod.uid not in self.pods or not self._node_lives(pod) or pod.record.terminal:
            return
        if pod.record.deleting is not None:
            self._remove(pod)
            return
        agent = pod.agent
        word = f"elasticjob: succeeded in generation {agent.generation}" if agent and agent.phase is SUCCEEDED else ""
        ended = Exit(code, reason or ("Error" if code else "Completed"), "the end of a log" if code else word)
        phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
        pod.update(phase=phase, exit=ended, started=False, lingers=self.sidecars)

    def _remove(self, pod: SimPod) -> None:
        self.pods.pop(pod.uid, None)
        self.agents.pop(pod.uid, None)
        self.told.pop(pod.uid, None)
        if pod.agent is not None and pod.agent.alive:
            pod.agent.alive = False
            self.break_world(pod.agent)

    def delete_pod(self, uid: str, *, force: bool = False, grace: float | None = None) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if force or not pod.record.node or _has_ended(pod.record):
            self._remove(pod)
            return
        if pod.record.deleting is not None:
            return
        pod.update(deleting=self.now + (self.grace + 5 if grace is None else grace))
        if self._node_lives(pod):
            if pod.agent is not None and pod.agent.alive and not pod.agent.paused:
                pod.agent.terminate()
            elif pod.agent is None or not pod.agent.alive:
                self.after(0.1, lambda: self._remove(pod) if self._node_lives(pod) else None)
        self.after(pod.record.deleting - self.now if pod.record.deleting else 0, lambda: self._kill_overdue(pod))

    def _kill_overdue(self, pod: SimPod) -> None:
        if pod.uid in self.pods and self._node_lives(pod):
            if pod.agent is not None and pod.agent.alive:
                pod.agent.exit(137)
            self.after(0.5, lambda: self._remove(pod) if self._node_lives(pod) else None)

    @property
    def grace(self) -> float:
        return float(self.spec.elastic_policy.graceful_shutdown_timeout_seconds)

    def delete_job(self) -> None:
        self.deleting = True
        for pod in list(self.pods.values()):
            self._remove(pod)
        self.children.clear()
        self.deleted = True

    # What users and clusters do.

    def edit(self, **changes: Any) -> None:
        """Change the spec: `min`, `max`, `replicas`, `suspend` or other fields of `Spec`."""
        raw = self.spec.dump()
        elastic = raw["elasticPolicy"]
        for key, name in (("min", "minReplicas"), ("max", "maxReplicas")):
            if key in changes:
                elastic[name] = changes.pop(key)
        if "suspend" in changes:
            raw.setdefault("runPolicy", {})["suspend"] = changes.pop("suspend")
        raw.update(changes)
        self.spec = api.parse_spec(raw)
        self.raw_generation += 1

    def pod(self, index: int) -> SimPod:
        return next(p for p in self.pods.values() if p.record.index == index)

    def agent(self, index: int) -> SimAgent:
        found = self.pod(index).agent
        assert found is not None
        return found

    def member(self, rank: int) -> SimPod:
        return self.pods[self.status.rendezvous.members[rank].uid]

    def kill(self, index: int, code: int = 137, reason: str = "") -> None:
        self.agent(index).exit(code, reason)

    def pause(self, index: int, seconds: float) -> None:
        self.pause_agent(self.agent(index), seconds)

    def pause_agent(self, agent: SimAgent, seconds: float) -> None:
        agent.paused = True
        self._go_silent(agent)
        self.after(seconds, lambda: self._unpause(agent))

    def hold_up(self, index: int, seconds: float, after: float = 1.0) -> None:
        """Pause a member; the others wait for it, say so, and the hub finds that it does not answer."""
        held = self.agent(index)
        self.pause(index, seconds)

        def notice() -> None:
            for pod in self.pods.values():
                if pod.agent is not None and pod.agent is not held and pod.agent.connected:
                    pod.agent.waits = True
                    self.hear(pod.agent)
                    pod.agent.waits = False
            self.agents[held.pod.uid] = replace(self.agents[held.pod.uid], mute=True)

        self.after(after, notice)

    def _unpause(self, agent: SimAgent) -> None:
        agent.paused = False
        if agent.alive:
            if agent.pod.record.deleting is not None:
                agent.terminate()
            if agent.connected:
                self.hear(agent)
                agent.obey()
            else:
                self._reconnect(agent)

    def cut_off(self, agent: SimAgent) -> None:
        """Disconnect the agent from the hub; it continues to train."""
        self.partitioned |= {agent.pod.uid}
        self._go_silent(agent)

    def heal_partition(self) -> None:
        self.partitioned = frozenset()
        for pod in self.pods.values():
            if pod.agent is not None:
                self._reconnect(pod.agent)

    def mend_images(self) -> None:
        """Failing image pulls succeed from now on."""
        self.behaviours = {}
        for pod in list(self.pods.values()):
            if pod.behaviour == "pull-error":
                pod.behaviour = ""
                pod.update(waiting="", waiting_message="")
                self._start(pod)

    def kill_node(self, name: str, *, noticed_after: float = 40.0) -> None:
        node = self.nodes[name]
        node.alive = False
        for pod in self.pods.values():
            if pod.record.node == name and pod.agent is not None and pod.agent.alive:
                if pod.agent.phase in (RUNNING, LEAVING):
                    self.break_world(pod.agent)
                pod.agent.alive = False
                self._go_silent(pod.agent)

        def notice() -> None:
            if name in self.nodes and not node.alive:
                node.record = replace(node.record, ready=False, not_ready_since=self.now)

        self.after(noticed_after, notice)

    def revive_node(self, name: str) -> None:
        node = self.nodes[name]
        node.alive = True
        node.record = replace(node.record, ready=True, not_ready_since=None)
        for pod in list(self.pods.values()):
            if pod.record.node == name and not pod.record.terminal:
                if pod.record.deleting is not None:
                    self._remove(pod)
                elif pod.agent is None or not pod.agent.alive:
                    self.kubelet_sees_exit(pod, 137, "")

    def remove_node(self, name: str) -> None:
        self.kill_node(name)
        del self.nodes[name]

    def change_node(self, name: str, **changes: Any) -> None:
        self.nodes[name].record = replace(self.nodes[name].record, **changes)

    def disrupt(self, index: int) -> None:
        """Disrupt a pod like the eviction API and the scheduler's preemption."""
        pod = self.pod(index)
        pod.update(disruption="EvictionByEvictionAPI", conditions=(("DisruptionTarget", "True"),))
        self.delete_pod(pod.uid)

    def report(self, index: int, step: int, total: int | None = None, seconds: float | None = None) -> None:
        uid = self.pod(index).uid
        progress = wire.Progress(
            generation=self.agents[uid].state.generation, rank=0, step=step, total_steps=total, step_seconds=seconds
        )
        self.agents[uid] = replace(self.agents[uid], progress=progress)

    def give_up(self, index: int, code: int = 1) -> None:
        """The agent itself exits after a failure."""
        agent = self.agent(index)
        agent.fail(code)
        agent.say(FAILED)
        agent.exit(code)

    # What there is to see.

    @property
    def world(self) -> list[str]:
        """The names of the members of the training world."""
        return [m.pod for m in self.status.rendezvous.members] if self.trains else []

    @property
    def size(self) -> int:
        return len(self.world)

    @property
    def trains(self) -> bool:
        """Whether every member runs the current generation."""
        world = self.status.rendezvous
        if not world.members:
            return False
        agents = [self.pods[m.uid].agent if m.uid in self.pods else None for m in world.members]
        return all(
            a is not None and a.alive and a.phase is RUNNING and a.generation == world.generation for a in agents
        )

    @property
    def generation(self) -> int:
        return self.status.rendezvous.generation

    def condition(self, type: str) -> tuple[str, str]:
        found = self.status.condition(type)
        return (found.status, found.reason) if found else ("", "")

    def told_events(self) -> list[str]:
        return [e.reason for e in self.events]

    def finish(self) -> None:
        for member in self.status.rendezvous.members:
            agent = self.pods[member.uid].agent if member.uid in self.pods else None
            if agent is not None:
                agent.succeed()

    def clock(self) -> str:
        return format_time(self.now)


def _has_ended(pod: Pod) -> bool:
    """Whether all of its containers have."""
    return pod.terminal and not pod.lingers


def _is_open(node: SimNode) -> bool:
    return node.alive and node.record.ready and not node.record.cordoned and not node.record.leaving
