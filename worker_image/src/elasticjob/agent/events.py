"""The inputs (events) and outputs (actions) of the agent's machine. All of them are frozen dataclasses.
`executor` posts events and carries out actions; `machine` maps the one to the other."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.protocol import wire


@dataclass(frozen=True)
class HubView:
    """The agent's current knowledge of the hub."""

    directive: wire.Directive | None = None  # the latest; it stays in force while the hub is away
    welcome: wire.Welcome | None = None  # the latest
    connected: bool = False
    rejected: bool = False  # the latest attempt to connect was refused: the hub does not know this pod
    fatal: str | None = None  # why the client stopped reconnecting
    problem: str | None = None  # why there is no connection at the moment


# Events.


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class HubChanged:
    """A message arrived from the hub, or the connection was made or lost. Carries the complete view."""

    hub: HubView


@dataclass(frozen=True)
class Terminated:
    """The agent received SIGTERM."""


@dataclass(frozen=True)
class Sized:
    """torch's agent has set the number of workers in this pod."""

    nproc: int


@dataclass(frozen=True)
class Wanted:
    """torch asks for a world to start workers in; none runs. `found`: the failure of the last ones that torch noted."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Listening:
    """A new store is open."""

    store: wire.Store


@dataclass(frozen=True)
class Entered:
    """The agent has connected to the store of this generation."""

    generation: int


@dataclass(frozen=True)
class Missed:
    """This generation ended before the agent had connected to its store."""

    generation: int


@dataclass(frozen=True)
class Parked:
    """torch's loop is blocked until the workers have stopped."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Hung:
    """The workers reported no step within the hang timeout; or, if `quiet` is not None, whether they do nothing."""

    quiet: bool | None = None


@dataclass(frozen=True)
class Examined:
    """The stacks of the hung workers were collected. `waiting`: pids of those blocked in a collective."""

    evidence: wire.Failure
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Saved:
    """Every script that was asked for a checkpoint has saved one, or has exited."""


@dataclass(frozen=True)
class Blocked:
    """Whether all workers wait for much longer than usual or, while they stop or pause, are blocked in a collective."""

    blocked: bool
    is_stopping: bool = True


@dataclass(frozen=True)
class Stopped:
    """All workers have exited."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class SessionsMade:
    """All workers of this generation have created a Session."""

    generation: int


@dataclass(frozen=True)
class Idle:
    """A session has left its world and waits for the next one. `error`: the exception that ended the last one."""

    pid: int
    error: str | None = None


@dataclass(frozen=True)
class Gone:
    """A worker has closed its control connection."""

    pid: int


@dataclass(frozen=True)
class Finished:
    """All workers exited with code 0."""


@dataclass(frozen=True)
class Ended:
    """The agent is about to exit, in this final phase."""

    phase: str
    failure: wire.Failure | None = None


Event = (
    Tick
    | HubChanged
    | Terminated
    | Sized
    | Wanted
    | Listening
    | Entered
    | Missed
    | Parked
    | Hung
    | Examined
    | Saved
    | Blocked
    | Stopped
    | SessionsMade
    | Idle
    | Gone
    | Finished
    | Ended
)


# Actions.


@dataclass(frozen=True)
class Publish:
    """Send this state to the hub."""

    state: wire.AgentState


@dataclass(frozen=True)
class CloseStores:
    """Close the stores of the last generation, which releases everything that blocks in them."""


@dataclass(frozen=True)
class OpenStore:
    """Open a new store; answered by Listening."""


@dataclass(frozen=True)
class Enter:
    """Connect to the store of this world; answered by Entered or Missed."""

    world: wire.World


@dataclass(frozen=True)
class Begin:
    """Start the workers in this world, or send the world to the waiting sessions."""

    world: wire.World
    to_sessions: bool


@dataclass(frozen=True)
class Launch:
    """Start the workers before a world exists: they create sessions and wait."""


@dataclass(frozen=True)
class Exit:
    """End torch's loop: the hub released this pod or, with `is_error`, the pod cannot take part."""

    code: int
    reason: str
    is_error: bool = False


@dataclass(frozen=True)
class Save:
    """Ask the scripts for a checkpoint; answered by Saved."""


@dataclass(frozen=True)
class Terminate:
    """Send SIGTERM to the workers. With `has_grace` they may save: Blocked tells if they cannot."""

    has_grace: bool = False


@dataclass(frozen=True)
class CheckStopped:
    """Check whether the workers have exited; answered by Stopped if they have."""


@dataclass(frozen=True)
class Kill:
    """Send SIGKILL to the workers; answered by Stopped."""


@dataclass(frozen=True)
class KillProcesses:
    """Send SIGKILL to all workers except these (pids), which can leave the collective and keep their memory."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KillSessions:
    """Send SIGKILL to the sessions that did not leave their world in time: all except these (pids)."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AskPause:
    """Ask the sessions to leave the world. If `announced`, they first agree on a common last step."""

    generation: int
    announced: bool


@dataclass(frozen=True)
class Examine:
    """Collect the stacks of the workers; answered by Examined."""


@dataclass(frozen=True)
class Log:
    text: str
    is_warning: bool = True


Action = (
    Publish
    | CloseStores
    | OpenStore
    | Enter
    | Begin
    | Launch
    | Exit
    | Save
    | Terminate
    | CheckStopped
    | Kill
    | KillProcesses
    | KillSessions
    | AskPause
    | Examine
    | Log
)
Actions = tuple[Action, ...]
