"""How every member stands towards the present generation, judged by evidence. Pure.

The evidence is what the agents say of themselves, what the hub knows of their connections and what the API server
knows of their pods. `judge` looks at values and never at what happened before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.wire import AgentPhase
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.model.observe import Agent, Pod, parse_time
from elasticjob_operator.sizing.legal import Sizes


@dataclass(frozen=True, slots=True)
class Settings:
    """Patience, in seconds. None of these is on the path of an undisturbed event."""

    reconnect: float = 1.0  # a closed connection has this long to come back
    restart_grace: float = 10.0  # the same, for agents that this hub has not seen yet since it started
    join_patience: float = 10.0  # once min are ready: how long others on their way are waited for
    admit: float = 3.0  # joiners this close together are admitted together
    stop: float = 15.0  # beyond the script's grace: an agent that does not stop its workers is lost
    start: float = 30.0  # an announced member that does not start is lost
    creating: float = 5.0  # a container that is created for longer than this pulls its image


@dataclass(frozen=True, slots=True)
class Worker:
    """One live or ended pod of the job, with what is known and wanted of it."""

    pod: Pod
    agent: Agent | None = None
    leaving: str = ""  # why it has to leave the world: scale-down, drain, ...; "" where it may stay
    patient: bool = False  # it leaves only when at least min are left without it
    held_until: float = 0.0  # a joiner is not admitted to a running world before this


class MemberHealth(StrEnum):
    """How a member stands towards the present generation."""

    RUNNING = "running"
    STARTING = "starting"  # it was told, or will be, and is not known to have started
    STOPPING = "stopping"  # it left the generation and is not ready again
    STOPPED = "stopped"  # it left the generation and is ready for the next
    SUCCEEDED = "succeeded"
    SUSPECT = "suspect"  # its connection closed a moment ago
    LOST = "lost"
    LATE = "late"  # it was told long ago; `judge` turns this into a verdict


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    member: api.Member
    health: MemberHealth
    worker: Worker | None = None
    why: str = ""
    until: float | None = None  # when to look again

    @property
    def leaving(self) -> str:
        """Why it was to go anyhow: its loss is no surprise and disturbs nobody's checkpoint."""
        return self.member.leaving or (self.worker.leaving if self.worker else "")


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything `decide` looks at."""

    world: api.RendezvousStatus
    workers: tuple[Worker, ...]
    sizes: Sizes
    now: float
    hub_started: float = 0.0
    missing: int = 0  # pods that are wanted and do not exist yet
    hold_until: float = 0.0  # crash-loop back-off: no world is formed before this
    broken_since: float | None = None  # since when no world trains
    grace: float = 30.0
    restarts: int = 0
    settings: Settings = Settings()

    def by_uid(self) -> dict[str, Worker]:
        return {w.pod.uid: w for w in self.workers}


def judge(situation: Situation) -> tuple[MemberVerdict, ...]:
    """How every member of the present generation stands, by evidence."""
    workers = situation.by_uid()
    first = _blame_store([_judge_member(m, workers.get(m.uid), situation) for m in situation.world.members])
    if not any(j.health in (MemberHealth.STOPPED, MemberHealth.STOPPING, MemberHealth.LOST) for j in first):
        return tuple(first)
    # A closed connection together with workers of others failing needs no second look.
    return tuple(_confirm(j) if j.health is MemberHealth.SUSPECT else j for j in first)


def _blame_store(verdicts: list[MemberVerdict]) -> list[MemberVerdict]:
    """Where most members could not start, it is rank 0's store that they did not reach."""
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
    if agent is None:  # this hub has not heard of it yet: that says nothing
        return verdicts
    return MemberVerdict(verdicts.member, MemberHealth.LOST, verdicts.worker, "its connection closed and others failed")


def _judge_member(member: api.Member, worker: Worker | None, situation: Situation) -> MemberVerdict:
    if worker is None:
        return MemberVerdict(member, MemberHealth.LOST, None, "its pod is gone")
    pod, agent = worker.pod, worker.agent
    generation = situation.world.generation
    if ended_well(member, pod, agent, generation):
        return MemberVerdict(member, MemberHealth.SUCCEEDED, worker)
    if pod.terminal:
        return MemberVerdict(member, MemberHealth.LOST, worker, f"its pod ended{_exit_text(pod)}")
    if agent is None or not agent.connected:
        return _judge_absent(member, worker, situation)
    if agent.state.phase is AgentPhase.FAILED:
        return MemberVerdict(member, MemberHealth.LOST, worker, "its agent gave up")
    return _judge_present(member, worker, agent, situation)


def ended_well(member: api.Member, pod: Pod, agent: Agent | None, generation: int) -> bool:
    """Whether this member's work is done. Exit code 0 alone is no proof: an agent that leaves ends with it too."""
    if agent is not None and agent.state.phase is AgentPhase.SUCCEEDED:
        return agent.state.generation == generation
    if pod.phase is not PodPhase.SUCCEEDED or pod.deleting is not None:
        return False
    if agent is None or member.leaving == names.Cause.SUSPENDED:  # one that was sent home may end without another word
        return not member.leaving
    return agent.state.phase is AgentPhase.RUNNING and agent.state.generation == generation


def _exit_text(pod: Pod) -> str:
    if pod.reason:
        return f" ({pod.reason})"
    return f" with exit code {pod.exit.code}" if pod.exit else ""


def _judge_absent(member: api.Member, worker: Worker, situation: Situation) -> MemberVerdict:
    agent, now, settings = worker.agent, situation.now, situation.settings
    ran = agent is None or (agent.state.phase in wire.IN_WORLD and agent.state.generation == situation.world.generation)
    if ran and worker.pod.live and not any(w.agent and w.agent.connected for w in situation.workers):
        # Where nobody answers it is more likely we who are cut off; a dead pod or node will show.
        return MemberVerdict(member, MemberHealth.SUSPECT, worker, "no agent of the job answers")
    if agent is None:
        until = situation.hub_started + settings.restart_grace
        if now < until:
            return MemberVerdict(member, MemberHealth.SUSPECT, worker, "not heard of since the operator started", until)
        return MemberVerdict(member, MemberHealth.LOST, worker, "not heard of since the operator started")
    if worker.pod.deleting is not None:
        return MemberVerdict(member, MemberHealth.LOST, worker, "its pod is being deleted and its connection closed")
    if agent.lost_by == "silent":
        return MemberVerdict(member, MemberHealth.LOST, worker, "it fell silent")
    until = agent.since + settings.reconnect
    if agent.since <= now < until:  # a time to come: the clock was set back
        return MemberVerdict(member, MemberHealth.SUSPECT, worker, "its connection closed", until)
    return MemberVerdict(member, MemberHealth.LOST, worker, "its connection closed and did not come back")


def _judge_present(member: api.Member, worker: Worker, agent: Agent, situation: Situation) -> MemberVerdict:
    world, state, settings = situation.world, agent.state, situation.settings
    if state.phase in wire.IN_WORLD and state.generation == world.generation:
        return MemberVerdict(member, MemberHealth.RUNNING, worker)
    if state.generation >= world.generation:  # it was in this generation and left it
        if state.phase is AgentPhase.READY:
            return MemberVerdict(member, MemberHealth.STOPPED, worker, "its workers stopped")
        if state.phase is AgentPhase.STARTING:  # in process: its worker died and is started anew; the others go on
            return MemberVerdict(member, MemberHealth.STOPPED, worker, "its worker is started anew")
        until = agent.state_since + situation.grace + settings.stop
        if situation.now < until:
            return MemberVerdict(member, MemberHealth.STOPPING, worker, "its workers stop", until)
        return MemberVerdict(member, MemberHealth.LOST, worker, "it did not stop its workers")
    if lost_its_store(member, state, world):
        return MemberVerdict(member, MemberHealth.STOPPED, worker, "the store of this generation is gone")
    # Nobody can be late for what nobody could tell it.
    until = max(parse_time(world.formed_time) or 0.0, agent.since, situation.hub_started) + settings.start
    if situation.now < until:
        return MemberVerdict(member, MemberHealth.STARTING, worker, "it has not started yet", until)
    return MemberVerdict(member, MemberHealth.LATE, worker, f"it did not start within {settings.start:.0f} s")


def lost_its_store(member: api.Member, state: wire.AgentState, world: api.RendezvousStatus) -> bool:
    """Whether rank 0 can never start in this generation, since it is ready with another store by now."""
    return state.phase is AgentPhase.READY and member.rank == 0 and not _hosts(state, world)


def _hosts(state: wire.AgentState, world: api.RendezvousStatus) -> bool:
    store = state.store
    return store is not None and world.store is not None and store.port == world.store.port
