"""The agent registry of one job: the latest state of each agent, and its directive.

An entry belongs to a pod and outlives the pod's connections. It holds the latest state of the agent and its directive;
both are whole states, so a lost connection costs nothing but a reconnect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from elasticjob_operator import ratelimit
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth, connection, frames, limits
from elasticjob_operator.model import observe

_JOB_NOTES = 8  # what a job may write into our log, as a multiple of what one of its pods may


class AgentEntry:
    """What the hub knows of one pod, over all its connections."""

    __slots__ = ("agent", "connects", "identity", "job", "link", "messages", "notes", "pending", "placed", "wanted")

    def __init__(self, job: JobAgents, settings: limits.HubSettings, now: float) -> None:
        self.job = job
        self.identity: auth.Identity | None = None
        self.agent: observe.Agent | None = None  # changed by `JobAgents` alone, which counts them
        self.link: connection.Connection | None = None
        self.pending: connection.Connection | None = None  # upgraded, and has not yet said hello
        self.placed = False  # whether it counts among the agents that there may be
        self.wanted: wire.Directive | None = None
        # They are the pod's and not a connection's, so coming again fills none of them.
        self.connects = ratelimit.Bucket(settings.connect_burst, now)
        self.messages = ratelimit.Bucket(settings.message_burst, now)
        self.notes = ratelimit.Bucket(settings.note_kib_burst, now)


class JobAgents:
    """The entries of one job by pod UID, and what is counted and limited for the job as a whole."""

    def __init__(self, key: JobKey, settings: limits.HubSettings, now: float) -> None:
        self.key = key
        self.entries: dict[str, AgentEntry] = {}
        self.encoder = frames.DirectiveEncoder()
        self.progress_waits = False  # progress came that the job has not been woken for
        self._progress_woken = float("-inf")
        self._settings = settings
        self._notes = ratelimit.Bucket(_JOB_NOTES * settings.note_kib_burst, now)
        self._tally: Counter[str] = Counter()  # how many agents are what `_traits` says

    def entry(self, uid: str, now: float) -> AgentEntry:
        """The entry of this pod, made where there is none."""
        if uid not in self.entries:
            self.entries[uid] = AgentEntry(self, self._settings, now)
        return self.entries[uid]

    def agents(self) -> Mapping[str, observe.Agent]:
        """The agents by pod UID, those included that lately lost their connection."""
        return {uid: entry.agent for uid, entry in self.entries.items() if entry.agent is not None}

    def forget(self, uid: str) -> AgentEntry | None:
        """The pod is gone; its entry, where there was one."""
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._put(entry, None)
        return entry

    def greet(self, entry: AgentEntry, identity: auth.Identity, hello: wire.Hello, now: float) -> bool:
        """The agent said hello; returns whether it is the one that was known, not its successor in the same pod."""
        before = entry.agent if entry.agent is not None and entry.agent.agent_id == hello.agent else None
        if before is None:
            entry.wanted = None  # said to a process that is gone: a world it was in is nothing for its successor
        agent = observe.Agent(
            pod=identity.pod,
            pod_uid=identity.pod_uid,
            connected=True,
            since=now,
            state=hello.state,
            state_since=_state_since(before, hello.state, now),
            progress=before.progress if before is not None else None,
            agent_id=hello.agent,
        )
        self._put(entry, agent)
        return before is not None

    def set_state(self, entry: AgentEntry, state: wire.AgentState, now: float) -> bool:
        """Whether that is news."""
        agent = entry.agent
        if agent is None or state == agent.state:
            return False
        self._put(entry, replace(agent, state=state, state_since=_state_since(agent, state, now)))
        return True

    def set_progress(self, entry: AgentEntry, progress: wire.Progress) -> None:
        if entry.agent is not None:
            entry.agent = replace(entry.agent, progress=progress)  # it changes nothing that is tallied

    def set_lost(self, entry: AgentEntry, lost_by: str, now: float) -> None:
        if entry.agent is not None:
            self._put(entry, replace(entry.agent, connected=False, since=now, lost_by=lost_by))

    def _put(self, entry: AgentEntry, agent: observe.Agent | None) -> None:
        self._tally.subtract(_traits(entry.agent))
        self._tally.update(_traits(agent))
        entry.agent = agent

    @property
    def is_in_process(self) -> bool:
        """Whether the job's scripts keep their memory over a regroup, as all that were in a world have shown."""
        return 0 < self._tally["tried"] == self._tally["keeping"]

    @property
    def is_training(self) -> bool:
        """Whether some of the agents are in a world, which would have to stop for a joiner."""
        return self._tally["training"] > 0

    def is_progress_due(self, now: float) -> bool:
        """Whether progress may wake the job now; else it waits for the next time this is asked."""
        self.progress_waits = now - self._progress_woken < self._settings.progress_wake_seconds
        if not self.progress_waits:
            self._progress_woken = now
        return not self.progress_waits

    def may_note(self, entry: AgentEntry, line: str, now: float) -> bool:
        """Whether the pod and its job have room left in our log for this line; takes it where they have."""
        rate, burst = self._settings.note_kib_per_second, self._settings.note_kib_burst
        cost = 1.0 + len(line) / 1024
        if not entry.notes.has(cost, rate, burst, now):
            return False
        if not self._notes.take(_JOB_NOTES * rate, _JOB_NOTES * burst, now, cost):
            return False
        return entry.notes.take(rate, burst, now, cost)


def _state_since(before: observe.Agent | None, state: wire.AgentState, now: float) -> float:
    """Since when the agent is in this phase of this generation. `before`: the same agent as last known."""
    if before is None:
        return now
    same = (before.state.phase, before.state.generation) == (state.phase, state.generation)
    return before.state_since if same else now


def _traits(agent: observe.Agent | None) -> list[str]:
    """What this agent counts as when a joiner asks what the others do."""
    if agent is None or not agent.connected:
        return []
    found: list[str] = []
    state = agent.state
    if state.generation > 0:
        found += ["tried", "keeping"] if state.in_process else ["tried"]
    if state.phase in wire.IN_WORLD:
        found.append("training")
    return found
