"""The state of an agent, on which `machine` decides. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from elasticjob.agent.events import Exit, HubView, Idle
from elasticjob.protocol import wire


class Stage(Enum):
    """What the agent is doing. The hub gets only the coarser `phase`."""

    IDLE = "idle"  # torch has not asked for a world yet
    LAUNCHED = "launched"  # workers that keep their memory run without a world, and not all of them wait for one yet
    PREPARING = "preparing"  # no worker runs in a world; a new store is being opened
    READY = "ready"  # waiting for a world
    ENTERING = "entering"  # connecting to the store of a world
    RUNNING = "running"  # the workers are in a world
    ENDING = "ending"  # the world is over; torch's loop may still poll the workers
    EXAMINING = "examining"  # the world hangs; the workers' stacks are being collected
    HOLDING = "holding"  # the world hangs; the workers are kept running while other agents examine theirs
    SAVING = "saving"  # the scripts are saving a checkpoint
    STOPPING = "stopping"  # the workers are being stopped
    STOPPED = "stopped"  # all workers have exited
    PAUSING = "pausing"  # the sessions have been asked to leave the world
    FINISHED = "finished"  # the workers succeeded
    OVER = "over"  # there will be no further world for this pod


@dataclass(frozen=True)
class State:
    """Everything that the machine decides on."""

    published: wire.AgentState  # as last sent to the hub
    grace_seconds: float  # from SIGTERM on, what the script may take to save
    wants_sessions: bool | None = None  # ELASTICJOB_IN_PROCESS; None: learn it from the script and the hub
    stage: Stage = Stage.IDLE
    hub: HubView = field(default_factory=HubView)
    world: wire.World | None = None  # the one to enter, or entered
    code: wire.Code | None = None  # what the workers run, or ran last; None: what the pod was created with
    ran: bool = False  # workers have been started at least once
    proven: bool = False  # the script has created a session
    launched: bool = False  # the workers were started without a world, and have not come to wait for one yet
    parked: bool = False  # torch's loop is blocked in the handler and polls no worker
    leave_at: float | None = None  # after SIGTERM: when to stop without an answer from the hub
    until: float | None = None  # when this stage times out
    granted: float = 0.0  # seconds that the scripts were given to save when the world ended
    deadline: float | None = None  # when those are over, for saving and stopping together
    asked: bool | None = None  # whether the latest request to leave the world was announced; None: not asked
    idle: tuple[Idle, ...] = ()  # sessions that are waiting for a world
    replaced: frozenset[int] = frozenset()  # workers (pids) that were started in place of others since the last world
    waiting: frozenset[int] = frozenset()  # workers (pids) of a hung world that are blocked in a collective
    evidence: wire.Failure | None = None  # the stacks of a hung world
    failure: wire.Failure | None = None  # why the workers exited
    end: Exit | None = None

    @property
    def generation(self) -> int:
        return self.published.generation

    @property
    def keeps_memory(self) -> bool:
        """Whether the workers outlive their world."""
        return self.published.in_process

    @property
    def peer_key(self) -> str:
        """By which the agents of the job know each other; "" before the hub has given it."""
        return "" if self.hub.welcome is None else self.hub.welcome.peer_key

    @property
    def all_idle(self) -> bool:
        return len(self.idle) >= self.published.nproc
