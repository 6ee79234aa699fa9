"""What an agent knows: the state that `machine` decides on. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from elasticjob.agent.events import Exit, HubView, Idle
from elasticjob.protocol import wire


class Stage(Enum):
    """What the agent is doing. The hub is told the coarser `phase`."""

    IDLE = "idle"  # nobody has asked for a world yet
    LAUNCHED = "launched"  # workers that keep their memory are in no world, and not all of them wait for one
    PREPARING = "preparing"  # no worker runs in a world; a new store is being opened
    READY = "ready"  # waits for a world
    ENTERING = "entering"  # connects to the store of a world
    RUNNING = "running"  # the workers are in a world
    ENDING = "ending"  # the world is over; torch's loop may still look at the workers
    EXAMINING = "examining"  # the world is over because it makes no steps: where are the workers?
    HOLDING = "holding"  # ... and now they are left as they are, while other agents look at theirs
    SAVING = "saving"  # the scripts save a checkpoint
    STOPPING = "stopping"  # the workers are being stopped
    STOPPED = "stopped"  # no worker runs
    PAUSING = "pausing"  # sessions are asked to leave the world
    FINISHED = "finished"  # the workers ended well
    OVER = "over"  # there will be no further world for this pod


@dataclass(frozen=True)
class State:
    """All that the machine decides on."""

    said: wire.AgentState  # what the hub has been told
    grace_seconds: float  # what the script may take to save, from SIGTERM on
    wants_sessions: bool | None = None  # the author's word on it; None: learn it from the script and the hub
    stage: Stage = Stage.IDLE
    hub: HubView = field(default_factory=HubView)
    world: wire.World | None = None  # the one to enter, or entered
    ran: bool = False  # workers were started
    proven: bool = False  # the script makes a session
    parked: bool = False  # torch's loop waits for us and looks at no worker
    leave_at: float | None = None  # SIGTERM came: when to stop without an answer
    until: float | None = None  # when the patience of this stage ends
    granted: float = 0.0  # seconds that the scripts were given to save when the end began
    asked: bool | None = None  # how the sessions were asked to pause: with notice or without
    idle: tuple[Idle, ...] = ()  # sessions that wait for a world
    waiting: frozenset[int] = frozenset()  # workers (pids) of a hung world that wait for others
    evidence: wire.Failure | None = None  # where a hung world stands
    failure: wire.Failure | None = None  # why the workers ended
    end: Exit | None = None

    @property
    def generation(self) -> int:
        return self.said.generation

    @property
    def keeps_memory(self) -> bool:
        """Whether the workers outlive their world."""
        return self.said.in_process

    @property
    def all_idle(self) -> bool:
        return len(self.idle) >= self.said.nproc
