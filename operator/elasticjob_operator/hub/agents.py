"""The agent registry of one job: the latest state of each agent, and its directive.

An entry belongs to a pod and outlives the pod's connections. State and directive are both complete values, so a lost
connection costs only a reconnect.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from elasticjob_operator import ratelimit
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth, connection, frames, limits
from elasticjob_operator.model import observe

_JOB_NOTES = 8  # log quota of a job, as a multiple of one pod's quota


class AgentEntry:
    """The hub's data about one pod, across its connections."""

    __slots__ = (
        "agent",
        "asks",
        "bytes",
        "connects",
        "excess",
        "identity",
        "job",
        "link",
        "messages",
        "notes",
        "pending",
        "placed",
        "unread",
        "wanted",
    )

    def __init__(self, job: JobAgents, settings: limits.HubSettings, now: float) -> None:
        self.job = job
        self.identity: auth.Identity | None = None
        self.agent: observe.Agent | None = None  # modified only by `JobAgents`, which counts agents
        self.link: connection.Connection | None = None
        self.pending: connection.Connection | None = None  # upgraded, but has not sent hello
        self.placed = False  # whether it holds one of the limited slots for agents
        self.wanted: wire.Directive | None = None
        self.excess: dict[str, int] = {}  # bytes that its last messages have more than each pod may
        self.unread = 0  # bytes of long directives that it has yet to read
        self.asks = False  # whether to ping it: its peers wait, and it is quiet
        # The buckets belong to the pod, not to a connection, so a reconnect does not refill them.
        self.connects = ratelimit.Bucket(settings.connect_burst, now)
        self.messages = ratelimit.Bucket(settings.message_burst, now)
        self.bytes = ratelimit.Bucket(limits.bytes_allowed(settings)[1], now)
        self.notes = ratelimit.Bucket(settings.note_kib_burst, now)


class JobAgents:
    """The entries of one job by pod UID, with the job's counters and limits."""

    def __init__(self, key: JobKey, settings: limits.HubSettings, now: float) -> None:
        self.key = key
        self.entries: dict[str, AgentEntry] = {}
        self.encoder = frames.DirectiveEncoder()
        self.progress_waits = False  # progress arrived that the job has not been woken for
        self._progress_woken = float("-inf")
        self._progress_generation = 0  # of the last world of which there was any
        self._progress_begun: AgentEntry | None = None  # by whom, first
        self._asked = float("-inf")
        self._settings = settings
        self._notes = ratelimit.Bucket(_JOB_NOTES * settings.note_kib_burst, now)
        self._tally: Counter[str] = Counter()  # the number of agents with each of the `_traits`

    def entry(self, uid: str, now: float) -> AgentEntry:
        """The entry of this pod, created if necessary."""
        if uid not in self.entries:
            self.entries[uid] = AgentEntry(self, self._settings, now)
        return self.entries[uid]

    def agents(self, now: float) -> Mapping[str, observe.Agent]:
        """The agents by pod UID, including those that recently lost their connection."""
        return {
            uid: replace(entry.agent, mute=True) if entry.link and entry.link.is_mute(now) else entry.agent
            for uid, entry in self.entries.items()
            if entry.agent is not None
        }

    def find_quiet(self, now: float) -> list[AgentEntry]:
        """The agents to ask whether they are there: they are in a world in which others wait, and are quiet.

        At most once per half of the time that they have to answer.
        """
        if not self._tally["waiting"] or now - self._asked < limits.answer_seconds(self._settings.timeout_min) / 2:
            return []
        self._asked = now
        return [e for e in self.entries.values() if e.link and _is_training(e.agent) and e.link.is_quiet(now)]

    def forget(self, uid: str) -> AgentEntry | None:
        """Remove a deleted pod; return its entry, if any."""
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._put(entry, None)
            if entry is self._progress_begun:  # a job that is made anew under this name counts its worlds from one
                self._progress_generation, self._progress_begun = 0, None
            if not self.entries:  # the job may stay for ever
                self.encoder = frames.DirectiveEncoder()
        return entry

    def greet(self, entry: AgentEntry, identity: auth.Identity, hello: wire.Hello, now: float) -> bool:
        """Record an agent's hello; return whether it is the known agent and not its successor in the same pod."""
        before = entry.agent if entry.agent is not None and entry.agent.agent_id == hello.agent else None
        if before is None:
            entry.wanted = None  # the directive was for the previous process, not for its successor
        agent = observe.Agent(
            pod=identity.pod,
            pod_uid=identity.pod_uid,
            connected=True,
            since=now,
            state=hello.state,
            state_since=_state_since(before, hello.state, now),
            progress=before.progress if before is not None else None,
            progress_since=before.progress_since if before is not None else now,
            agent_id=hello.agent,
        )
        self._put(entry, agent)
        return before is not None

    def set_state(self, entry: AgentEntry, state: wire.AgentState, now: float) -> bool:
        """Record the state; return whether it differs from the last one."""
        agent = entry.agent
        if agent is None or state == agent.state:
            return False
        self._put(entry, replace(agent, state=state, state_since=_state_since(agent, state, now)))
        return True

    def set_progress(self, entry: AgentEntry, progress: wire.Progress, now: float) -> None:
        if entry.agent is not None:
            entry.agent = replace(entry.agent, progress=progress, progress_since=now)  # does not affect the tally

    def set_lost(self, entry: AgentEntry, lost_by: str, now: float) -> None:
        if entry.agent is not None:
            self._put(entry, replace(entry.agent, connected=False, since=now, lost_by=lost_by))

    def _put(self, entry: AgentEntry, agent: observe.Agent | None) -> None:
        self._tally.subtract(_traits(entry.agent))
        self._tally.update(_traits(agent))
        entry.agent = agent

    @cached_property
    def peer_key(self) -> str:
        """By which the job's agents know each other. All of them connect anew, and get another one, with a new hub."""
        return secrets.token_hex(32)

    @property
    def is_in_process(self) -> bool:
        """Whether the job's scripts run sessions, as shown by all agents that were in a world."""
        return 0 < self._tally["tried"] == self._tally["keeping"]

    @property
    def is_training(self) -> bool:
        """Whether some agents are in a world, which would have to stop for a joiner."""
        return self._tally["training"] > 0

    def is_first_step(self, entry: AgentEntry, generation: int) -> bool:
        """Whether a step of this pod is the first one of the world that it was told to enter: the job trains again."""
        is_told = isinstance(entry.wanted, wire.World) and entry.wanted.generation == generation  # it may name any
        if not is_told or generation == self._progress_generation:
            return False
        self._progress_generation, self._progress_begun = generation, entry
        return True

    def is_progress_due(self, now: float, *, is_first: bool = False) -> bool:
        """Whether progress may wake the job now; if not, it waits for the next call. `is_first`: of a world."""
        self.progress_waits = not is_first and now - self._progress_woken < self._settings.progress_wake_seconds
        if not self.progress_waits:
            self._progress_woken = now
        return not self.progress_waits

    def may_note(self, entry: AgentEntry, line: str, now: float) -> bool:
        """Whether the log quotas of the pod and its job allow this line; uses them if so."""
        rate, burst = self._settings.note_kib_per_second, self._settings.note_kib_burst
        cost = 1.0 + len(line) / 1024
        if not entry.notes.has(cost, rate, burst, now):
            return False
        if not self._notes.take(_JOB_NOTES * rate, _JOB_NOTES * burst, now, cost):
            return False
        return entry.notes.take(rate, burst, now, cost)


def _state_since(before: observe.Agent | None, state: wire.AgentState, now: float) -> float:
    """The time since which the agent is in this phase of this generation. `before`: its last known state."""
    if before is None:
        return now
    same = (before.state.phase, before.state.generation) == (state.phase, state.generation)
    return before.state_since if same else now


def _traits(agent: observe.Agent | None) -> list[str]:
    """What this agent counts as when a joiner queries the state of the others."""
    if agent is None or not agent.connected:
        return []
    found: list[str] = []
    state = agent.state
    if state.generation > 0:
        found += ["tried", "keeping"] if state.in_process else ["tried"]
    if _is_training(agent):
        found += ["training", "waiting"] if state.blocked else ["training"]
    return found


def _is_training(agent: observe.Agent | None) -> bool:
    return agent is not None and agent.connected and agent.state.phase in wire.IN_WORLD
