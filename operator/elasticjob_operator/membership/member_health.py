"""Derives the health of every member in the current generation from evidence. Pure.

The evidence is the state that agents publish, the state of their connections, and the state of their pods. `judge`
depends only on current values, never on past events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.model import errortext
from elasticjob_operator.model.containers import UNSAID, PodPhase
from elasticjob_operator.model.observe import Agent, Pod
from elasticjob_operator.model.topology import Place
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import parse_time


@dataclass(frozen=True, slots=True)
class Settings:
    """Timeouts in seconds. None of them delays a change without failures."""

    reconnect: float = 1.0  # time for an agent to reconnect
    restart_grace: float = 10.0  # the same, for agents that have not connected since this hub started
    join_patience: float = 10.0  # once minReplicas are ready: how long to wait for others that are starting
    admit: float = 3.0  # joiners that become ready within this time are admitted together
    stop: float = 15.0  # beyond the grace period: an agent that does not stop its workers is lost
    start: float = 30.0  # an announced member that does not start is lost
    creating: float = 5.0  # a container that takes longer to create is assumed to pull its image


@dataclass(frozen=True, slots=True)
class Worker:
    """One live or terminated pod of the job, with its agent and what is planned for it."""

    pod: Pod
    agent: Agent | None = None
    leaving: str = ""  # why it has to leave the world: scale-down, drain, ...; "" if it may stay
    patient: bool = False  # it leaves only if at least minReplicas remain without it
    replaced: bool = False  # another pod takes its place as soon as one is ready
    place: Place = ()  # of its node
    held_until: float = 0.0  # a joiner is not admitted to a running world before this


class MemberHealth(StrEnum):
    """The health of a member in the current generation."""

    RUNNING = "running"
    STARTING = "starting"  # the world was or will be sent to it; it is not known to have started
    STOPPING = "stopping"  # it has left the generation and is not ready yet
    STOPPED = "stopped"  # it has left the generation and is ready for the next one
    SUCCEEDED = "succeeded"
    SUSPECT = "suspect"  # its connection closed a moment ago
    LOST = "lost"
    LATE = "late"  # the world was sent long ago; `judge` replaces this by another value


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    member: api.Member
    health: MemberHealth
    worker: Worker | None = None
    why: str = ""
    until: float | None = None  # when to check again

    @property
    def leaving(self) -> str:
        """Why it was leaving anyway; its loss is expected and does not prevent a checkpoint."""
        return self.member.leaving or (self.worker.leaving if self.worker else "")


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of `decide`."""

    world: api.RendezvousStatus
    workers: tuple[Worker, ...]
    sizes: Sizes
    now: float
    layout: api.Layout = field(default_factory=api.Layout)  # how pods hold the copies of the model
    hub_started: float = 0.0
    missing: int = 0  # pods that are wanted and do not exist yet
    hold_until: float = 0.0  # crash-loop back-off: no world is formed before this
    broken_since: float | None = None  # since when no world trains
    grace: float = 30.0
    restarts: int = 0
    repeats: int = 0  # how many of them in a row were the same error; 0 for the first one
    ordered: api.OrderedRestart | None = None  # a rule ends this world
    before: int | None = None  # only checkpoints of earlier steps are restored
    code: wire.Code | None = None  # of the next worlds; None: what the job was submitted with
    settings: Settings = Settings()

    @property
    def is_outdated(self) -> bool:
        """Whether the present world runs other code than the next one is to run."""
        return bool(self.world.members) and (self.world.revision or 0) != (self.code.revision if self.code else 0)

    def by_uid(self) -> dict[str, Worker]:
        return {w.pod.uid: w for w in self.workers}


def judge(situation: Situation) -> tuple[MemberVerdict, ...]:
    """The verdict for every member of the current generation."""
    workers = situation.by_uid()
    is_cut_off = not any(w.agent and w.agent.connected for w in situation.workers)
    members = situation.world.members
    pods = {uid: w.pod for uid, w in workers.items()}
    done = find_succeeded(situation.world, pods, {uid: w.agent for uid, w in workers.items() if w.agent is not None})
    first = _blame_store(
        [_judge_member(m, workers.get(m.uid), situation, is_cut_off=is_cut_off, is_done=m.uid in done) for m in members]
    )
    first = _give_up_mute(first)
    if not any(j.health in (MemberHealth.STOPPED, MemberHealth.STOPPING, MemberHealth.LOST) for j in first):
        return tuple(first)
    # A closed connection together with failed workers of other members is sufficient evidence.
    return tuple(_confirm(j) if j.health is MemberHealth.SUSPECT else j for j in first)


def _blame_store(verdicts: list[MemberVerdict]) -> list[MemberVerdict]:
    """If most members could not start, blame rank 0, whose store they could not reach."""
    late = [j for j in verdicts if j.health is MemberHealth.LATE]
    if len(verdicts) == 1 or 2 * len(late) <= len(verdicts):
        return [replace(j, health=MemberHealth.LOST) if j.health is MemberHealth.LATE else j for j in verdicts]
    mended = [replace(j, health=MemberHealth.STOPPED) if j.health is MemberHealth.LATE else j for j in verdicts]
    first = mended[0]
    if first.health in (MemberHealth.RUNNING, MemberHealth.STOPPED):
        mended[0] = replace(first, health=MemberHealth.LOST, why="the others could not reach its store")
    return mended


def _confirm(verdicts: MemberVerdict) -> MemberVerdict:
    agent = verdicts.worker.agent if verdicts.worker else None
    if agent is None:  # it has not connected to this hub yet, which is no evidence
        return verdicts
    return MemberVerdict(verdicts.member, MemberHealth.LOST, verdicts.worker, "its connection closed and others failed")


def _give_up_mute(verdicts: list[MemberVerdict]) -> list[MemberVerdict]:
    """Members that do not answer are lost if the others wait for them, or have stopped already.

    Neither is evidence alone: a member may be silent while the steps go on, and a world may wait for a slow disk. If
    nobody answers, the hub itself is more likely cut off.
    """
    rest = [j for j in verdicts if not _is_mute(j)]
    over = (MemberHealth.STOPPING, MemberHealth.STOPPED)
    evidence = [j.health in over or _is_waiting(j) for j in rest]
    others = (j.health for j, is_evidence in zip(rest, evidence, strict=True) if not is_evidence)
    if not any(evidence) or any(health is not MemberHealth.LOST for health in others):
        return verdicts
    why = "it does not answer, and the others wait for it"
    return [replace(j, health=MemberHealth.LOST, why=why) if _is_mute(j) else j for j in verdicts]


def _is_mute(verdict: MemberVerdict) -> bool:
    agent = verdict.worker.agent if verdict.worker else None
    return agent is not None and agent.mute and verdict.health in (MemberHealth.RUNNING, MemberHealth.STOPPING)


def _is_waiting(verdict: MemberVerdict) -> bool:
    agent = verdict.worker.agent if verdict.worker else None
    return agent is not None and agent.state.blocked and verdict.health is MemberHealth.RUNNING


def _judge_member(
    member: api.Member, worker: Worker | None, situation: Situation, *, is_cut_off: bool, is_done: bool
) -> MemberVerdict:
    if worker is None:
        return MemberVerdict(member, MemberHealth.LOST, None, "its pod is gone")
    pod, agent = worker.pod, worker.agent
    if is_done:
        return MemberVerdict(member, MemberHealth.SUCCEEDED, worker)
    if ended_well(pod, agent, situation.world.generation):
        return MemberVerdict(member, MemberHealth.LOST, worker, "it ended with exit code 0, and the others lost it")
    if pod.terminal:
        return MemberVerdict(member, MemberHealth.LOST, worker, f"its pod ended{_exit_text(pod)}")
    if agent is None or not agent.connected:
        return _judge_absent(member, worker, situation, is_cut_off=is_cut_off)
    if agent.state.phase is AgentPhase.FAILED:
        return MemberVerdict(member, MemberHealth.LOST, worker, "its agent gave up")
    return _judge_present(member, worker, agent, situation)


def find_succeeded(world: api.RendezvousStatus, pods: Mapping[str, Pod], agents: Mapping[str, Agent]) -> frozenset[str]:
    """The members (UIDs) that have succeeded. If others were training and failed because they lost these, none has:
    the script of whoever ended well has ended too early.
    """
    ended = {
        m.uid for m in world.members if m.uid in pods and ended_well(pods[m.uid], agents.get(m.uid), world.generation)
    }
    failures: list[wire.Failure] = []
    if not ended:
        return frozenset()
    for uid in {m.uid for m in world.members} - ended:
        agent = agents.get(uid)
        if agent is None or not agent.connected or uid not in pods or pods[uid].terminal:  # perhaps it is lost itself
            return frozenset(ended)
        failure = agent.state.failure
        if failure is not None and failure.generation == world.generation and failure.kind is None:
            failures.append(failure)
    lost = [errortext.is_of_a_peer(f.signal or "", f"{f.message}{f.traceback}") for f in failures]
    return frozenset() if lost and all(lost) else frozenset(ended)


def ended_well(pod: Pod, agent: Agent | None, generation: int) -> bool:
    """Whether this member has succeeded: its agent told the hub, or left word where the kubelet finds it.

    Exit code 0 is no proof. A leaving agent exits with 0, and so does a shell whose agent was killed: `torchrun | tee`.
    """
    if agent is not None and agent.state.phase is AgentPhase.SUCCEEDED:
        return agent.state.generation == generation
    return pod.exit is not None and pod.exit.succeeded_in == generation


def _exit_text(pod: Pod) -> str:
    if pod.reason:
        return f" ({pod.reason})"
    if pod.exit is None:
        return ""
    return f" with exit code {pod.exit.code}" + (f", but {UNSAID}" if pod.phase is PodPhase.SUCCEEDED else "")


def _judge_absent(member: api.Member, worker: Worker, situation: Situation, *, is_cut_off: bool) -> MemberVerdict:
    """`is_cut_off`: no agent of the job is connected."""
    agent, now, settings = worker.agent, situation.now, situation.settings
    ran = agent is None or (agent.state.phase in wire.IN_WORLD and agent.state.generation == situation.world.generation)
    if ran and worker.pod.live and is_cut_off:
        # If no agent responds, the hub is more likely cut off. A dead pod or node is noticed by other means.
        return MemberVerdict(member, MemberHealth.SUSPECT, worker, "no agent of the job responds")
    if agent is None:
        until = situation.hub_started + settings.restart_grace
        if now < until:
            return MemberVerdict(
                member, MemberHealth.SUSPECT, worker, "its agent has not connected since the operator started", until
            )
        return MemberVerdict(
            member, MemberHealth.LOST, worker, "its agent has not connected since the operator started"
        )
    if worker.pod.deleting is not None:
        return MemberVerdict(member, MemberHealth.LOST, worker, "its pod is being deleted and its connection closed")
    if agent.lost_by == "silent":
        return MemberVerdict(member, MemberHealth.LOST, worker, "its agent stopped responding")
    until = agent.since + settings.reconnect
    if agent.since <= now < until:  # a time in the future means that the clock was set back
        return MemberVerdict(member, MemberHealth.SUSPECT, worker, "its connection closed", until)
    return MemberVerdict(member, MemberHealth.LOST, worker, "its connection closed and did not come back")


def _judge_present(member: api.Member, worker: Worker, agent: Agent, situation: Situation) -> MemberVerdict:
    world, state, settings = situation.world, agent.state, situation.settings
    if state.phase in wire.IN_WORLD and state.generation == world.generation:
        return MemberVerdict(member, MemberHealth.RUNNING, worker)
    if state.generation >= world.generation:  # it was in this generation and has left it
        if state.phase is AgentPhase.READY:
            return MemberVerdict(member, MemberHealth.STOPPED, worker, "its workers stopped")
        if state.phase is AgentPhase.STARTING:  # in process: its worker died and is restarted; the others continue
            return MemberVerdict(member, MemberHealth.STOPPED, worker, "its worker is being restarted")
        until = agent.state_since + situation.grace + settings.stop
        if situation.now < until:
            return MemberVerdict(member, MemberHealth.STOPPING, worker, "its workers are stopping", until)
        return MemberVerdict(member, MemberHealth.LOST, worker, "it did not stop its workers")
    if lost_its_store(member, state, world):
        return MemberVerdict(member, MemberHealth.STOPPED, worker, "the store of this generation is gone")
    if state.checkpoint is not None and state.checkpoint.restoring:
        return MemberVerdict(member, MemberHealth.STARTING, worker, "it gets the checkpoint to begin with")
    # An agent cannot be late if the directive could not be sent to it.
    until = max(parse_time(world.formed_time) or 0.0, agent.since, situation.hub_started) + settings.start
    if situation.now < until:
        return MemberVerdict(member, MemberHealth.STARTING, worker, "it has not started yet", until)
    return MemberVerdict(member, MemberHealth.LATE, worker, f"it did not start within {settings.start:.0f} s")


def lost_its_store(member: api.Member, state: wire.AgentState, world: api.RendezvousStatus) -> bool:
    """Whether rank 0 can never start in this generation, because it is ready with another store by now."""
    return state.phase is AgentPhase.READY and member.rank == 0 and not _hosts(state, world)


def _hosts(state: wire.AgentState, world: api.RendezvousStatus) -> bool:
    store = state.store
    return store is not None and world.store is not None and store.port == world.store.port
