"""Agents of the simulated cluster: they follow the state machine of docs/protocol.md, with delays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elasticjob_operator.api import wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.model.observe import Agent

if TYPE_CHECKING:
    from controller.simulated_cluster import Cluster, SimPod

READY, RUNNING, STOPPING = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.STOPPING
LEAVING, SUCCEEDED, FAILED = AgentPhase.LEAVING, AgentPhase.SUCCEEDED, AgentPhase.FAILED


@dataclass
class Pace:
    """Durations in seconds."""

    boot: float = 2.0  # from the container's start to `ready`
    start: float = 0.5  # from a world to `running`
    stop: float = 0.2
    checkpoint: float = 2.0
    notice: float | None = 0.1  # after which the others feel that a peer is gone; None: they never do
    silence: float = 3.0  # after which the hub calls a connection silent
    reconnect: float = 0.2


@dataclass
class SimAgent:
    """One agent process."""

    pod: SimPod
    cluster: Cluster
    phase: AgentPhase = AgentPhase.STARTING
    generation: int = 0
    port: int = 0
    failure: wire.Failure | None = None
    unsaved: wire.Failure | None = None
    watches: str | None = None  # which expressions it looks for
    signs: tuple[wire.Sign, ...] = ()  # and has found
    cannot_save: bool = False  # its script raises when it is asked to save
    alive: bool = True
    paused: bool = False
    connected: bool = False
    wants_out: bool = False
    waits: bool = False  # its workers wait for a peer
    quiet: int = 0  # the generation in which no main thread of them goes on
    beside: int = 0  # ... but something beside them does
    deaf: bool = False  # connected, and does not do what it is told
    world: wire.World | None = None
    check: wire.Preflight | None = None
    inbox: list[wire.Directive] = field(default_factory=list)
    epoch: int = 0  # timers of an older epoch are void

    # What it says.

    def state(self) -> wire.AgentState:
        hosts = self.phase is READY
        return wire.AgentState(
            phase=self.phase,
            generation=self.generation,
            store=wire.Store(address=self.pod.ip, port=self.port) if hosts else None,
            address=self.pod.ip,
            failure=self.failure,
            unsaved=self.unsaved,
            blocked=self.waits and self.phase is RUNNING,
            quiet=self.quiet,
            beside=self.beside,
            preflight=self.check,
            watches=self.watches,
            signs=self.signs,
        )

    def say(self, phase: AgentPhase) -> None:
        self.phase = phase
        self.epoch += 1
        if self.connected and not self.paused:
            self.cluster.hear(self)

    def later(self, delay: float, step: str) -> None:
        epoch = self.epoch

        def run() -> None:
            if not self.alive or self.epoch != epoch:
                return
            if self.paused:
                self.later(0.5, step)
                return
            getattr(self, step)()

        self.cluster.after(delay, run)

    # Its life.

    def boot(self) -> None:
        self.cluster.connect(self)
        if self.pod.record.node in self.cluster.unfit:
            self.failure = wire.Failure(message="preflight: shm: /dev/shm is too small -- mount a bigger one")
            self.say(FAILED)
            self.exit(1)
            return
        if self.cluster.bad_links is not None:
            self.check = wire.Preflight(port=self.pod.record.index + 1)
            self.say(AgentPhase.STARTING)
            return
        self.become_ready()

    def follow(self, told: wire.Probe) -> None:
        """Measure the links that the hub wants, and join or give up when it says so."""
        check, bad = self.check, self.cluster.bad_links or set()
        if check is None or check.over:
            return
        if told.passed is False:
            self.failure = wire.Failure(message=f"preflight: network: {told.reason}")
            self.say(FAILED)
            self.exit(1)
        elif told.passed:
            self.check = check.model_copy(update={"over": True})
            self.become_ready()
        else:
            known = {link.uid for link in check.links}
            nodes = {pod.uid: pod.record.node for pod in self.cluster.pods.values()}
            fresh = tuple(
                wire.Link(
                    uid=peer.uid,
                    seconds=0.0002,
                    bytes_per_second=1e6 if bad & {self.pod.record.node, nodes.get(peer.uid)} else 4e8,
                )
                for peer in told.peers
                if peer.uid not in known
            )
            if fresh:
                self.check = check.model_copy(update={"links": (*check.links, *fresh)})
                self.say(AgentPhase.STARTING)

    def become_ready(self) -> None:
        if self.wants_out:
            self.exit(0)
            return
        self.cluster.ports += 1
        self.port = self.cluster.ports
        self.world = None
        self.say(READY)
        self.obey()

    def receive(self, directive: wire.Directive) -> None:
        if not self.alive:
            return
        self.inbox = [directive]
        if not self.paused:
            self.obey()

    def obey(self) -> None:
        """Execute the latest directive, if it applies."""
        if not self.inbox or self.deaf:
            return
        directive = self.inbox[0]
        if isinstance(directive, wire.Probe):
            self.follow(directive)
        elif isinstance(directive, wire.World):
            mine = directive.rank != 0 or directive.store.port == self.port
            if self.phase is READY and directive.generation > self.generation and mine:
                self.world = directive
                self.epoch += 1
                self.later(self.cluster.pace.start, "enter")
        elif isinstance(directive, wire.Regroup):
            if self.phase in (RUNNING, LEAVING) and self.generation <= directive.generation:
                if self.cannot_save and directive.checkpoint:
                    self.unsaved = wire.Failure(generation=self.generation, exit_code=1, message="OSError: disk full")
                self.say(STOPPING)
                self.later(
                    self.cluster.pace.checkpoint if directive.checkpoint else self.cluster.pace.stop, "become_ready"
                )
            elif self.phase is READY and self.generation < directive.generation:
                self.world, self.generation = None, directive.generation
                self.say(READY)
        elif self.phase in (RUNNING, LEAVING):
            self.exit_code = 0 if directive.ok else 1
            self.say(STOPPING)
            self.later(self.cluster.pace.checkpoint if directive.checkpoint else self.cluster.pace.stop, "exit_as_told")
        elif self.phase is not STOPPING:
            self.exit(0 if directive.ok else 1)
        else:
            self.wants_out = True

    exit_code: int = 0

    def exit_as_told(self) -> None:
        self.exit(self.exit_code)

    def enter(self) -> None:
        """Connect to rank 0's store; retry while no process listens there."""
        world = self.world
        if world is None or not self.inbox or self.inbox[0] != world:
            return  # it has heard of something else meanwhile
        if world.rank != 0 and not self.cluster.listens(world.store.port):
            self.later(0.5, "enter")
            return
        self.generation = world.generation
        self.failure = self.unsaved = None
        self.say(RUNNING)

    def fail(self, code: int = 1, message: str = "ValueError: boom", *, secondary: bool = False) -> None:
        """A worker process of this agent fails."""
        if self.phase not in (RUNNING, LEAVING):
            return
        text = "RuntimeError: Connection closed by peer" if secondary else message
        trace = f"Traceback (most recent call last)\n{text}"
        self.failure = wire.Failure(generation=self.generation, exit_code=code, message=text, traceback=trace)
        if not secondary:
            self.cluster.break_world(self)
        self.say(STOPPING)
        self.later(self.cluster.pace.stop, "become_ready")

    def begin_again(self) -> None:
        """The session of its worker cannot use what it has in memory."""
        text = "other ranks had gone on from epoch 3 to 4 when the world broke: beginning again, with their state"
        self.failure = wire.Failure(generation=self.generation, message=text, kind=wire.RESTART)
        self.cluster.break_world(self)
        self.say(STOPPING)
        self.later(self.cluster.pace.stop, "become_ready")

    def become_corrupt(self) -> None:
        """Its replica differs from the others: it gives up."""
        text = "corrupt state: after step 40, its parameters differ"
        self.failure = wire.Failure(generation=self.generation, message=text)
        self.cluster.break_world(self)
        self.say(FAILED)
        self.later(0.2, "die_corrupt")

    def die_corrupt(self) -> None:
        self.exit(1)

    def feel_loss(self, generation: int) -> None:
        if self.alive and not self.paused and self.phase in (RUNNING, LEAVING) and self.generation == generation:
            self.fail(secondary=True)

    def rest(self, quiet: int = 0, beside: int = 0) -> None:
        """No main thread of its workers goes on in this generation."""
        self.quiet, self.beside = quiet, beside
        self.cluster.hear(self)

    def succeed(self) -> None:
        if self.alive and self.phase is RUNNING:
            self.say(SUCCEEDED)
            self.later(10.0, "end")
            self.obey()

    def end(self) -> None:
        self.exit(0)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.wants_out:
            return
        self.wants_out = True
        if self.phase is RUNNING:
            self.say(LEAVING)
            self.later(self.cluster.grace, "end")
        elif self.phase is not STOPPING:
            self.later(0.1, "end")

    def exit(self, code: int, reason: str = "") -> None:
        """The process ends: its connection closes, and the kubelet notices a little later."""
        if not self.alive:
            return
        if self.phase in (RUNNING, LEAVING):
            self.cluster.break_world(self)
        self.alive = False
        self.cluster.disconnect(self, "closed")
        self.cluster.after(0.5, lambda: self.cluster.kubelet_sees_exit(self.pod, code, reason))

    def record(self, before: Agent | None) -> Agent:
        """The hub's record of the agent."""
        state, now = self.state(), self.cluster.now
        same = before is not None and (before.state.phase, before.state.generation) == (state.phase, state.generation)
        return Agent(
            pod=self.pod.name,
            pod_uid=self.pod.uid,
            connected=True,
            since=before.since if before is not None and before.connected else now,
            state=state,
            state_since=before.state_since if before is not None and same else now,
            progress=self._progress() or (before.progress if before else None),
            progress_since=now,
        )

    def _progress(self) -> wire.Progress | None:
        own, more = self.cluster.step_seconds.get(self.pod.record.node), self.cluster.reports(self)
        if (own is None and more is None) or self.phase is not RUNNING or self.world is None:
            return None
        return wire.Progress(generation=self.generation, rank=self.world.rank, own_seconds=own, **(more or {}))


def lose(agent: Agent, by: str, now: float) -> Agent:
    return replace(agent, connected=False, lost_by=by, since=now)
