"""The inputs (events) and outputs (actions) of the agent's machine. All of them are frozen dataclasses.
`executor` posts events and carries out actions; `machine` maps the one to the other."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.protocol import wire
from elasticjob.protocol.preflight import Preflight


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


class Event:
    """Something that has happened."""


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True)
class HubChanged(Event):
    """A message arrived from the hub, or the connection was made or lost. Carries the complete view."""

    hub: HubView


@dataclass(frozen=True)
class Terminated(Event):
    """The agent received SIGTERM."""


@dataclass(frozen=True)
class Sized(Event):
    """torch's agent has set the number of workers in this pod."""

    nproc: int


@dataclass(frozen=True)
class Watches(Event):
    """The output of the workers is looked at for the rules of the job."""

    digest: str


@dataclass(frozen=True)
class Codes(Event):
    """The revisions of the code that this pod has have changed."""

    digests: tuple[str, ...]


@dataclass(frozen=True)
class Device(Event):
    """A worker has said which device it has."""

    local_rank: int
    name: str


@dataclass(frozen=True)
class Wrote(Event):
    """A worker has written a line that a rule of the job looks for."""

    sign: wire.Sign


@dataclass(frozen=True)
class Checked(Event):
    """The preflight goes on: where this pod answers probes, and what it has measured."""

    found: Preflight


@dataclass(frozen=True)
class Wanted(Event):
    """torch asks for a world to start workers in; none runs. `found`: the failure of the last ones that torch noted."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Listening(Event):
    """A new store is open."""

    store: wire.Store


@dataclass(frozen=True)
class Entered(Event):
    """The agent has connected to the store of this generation."""

    generation: int


@dataclass(frozen=True)
class Missed(Event):
    """This generation ended before the agent had connected to its store."""

    generation: int


@dataclass(frozen=True)
class Kept(Event):
    """What has become of the job's checkpoints, of which other pods hold copies."""

    checkpoint: wire.Checkpoint


@dataclass(frozen=True)
class Parked(Event):
    """torch's loop is blocked until the workers have stopped."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Hung(Event):
    """The workers reported no step within the hang timeout. Or, if `quiet` is not None: whether they do nothing, or
    nothing goes on but something `beside` their main threads.
    """

    quiet: bool | None = None
    beside: bool = False


@dataclass(frozen=True)
class Examined(Event):
    """The stacks of the hung workers were collected. `waiting`: pids of those blocked in a collective."""

    evidence: wire.Failure
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Saved(Event):
    """Every script that was asked for a checkpoint has saved one, or has exited."""


@dataclass(frozen=True)
class Blocked(Event):
    """Whether all workers wait for much longer than usual or, while they stop or pause, are blocked in a collective."""

    blocked: bool
    is_stopping: bool = True


@dataclass(frozen=True)
class Stopped(Event):
    """All workers have exited."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class SessionsMade(Event):
    """All workers of this generation have created a Session."""

    generation: int


@dataclass(frozen=True)
class Idle(Event):
    """A session has left its world and waits for the next one. `error`: the exception that ended the last one.

    `shards`: those of the model that it has in memory, if not every session has all. `made`: so many steps.
    """

    pid: int
    error: str | None = None
    shards: tuple[int, ...] = ()
    made: int = 0


@dataclass(frozen=True)
class Gone(Event):
    """A worker has closed its control connection."""

    pid: int


@dataclass(frozen=True)
class Replaced(Event):
    """The workers `lost` (pids) have failed, and `pids` were started in their places; the others keep their memory."""

    lost: frozenset[int]
    pids: frozenset[int]
    found: wire.Failure | None = None


@dataclass(frozen=True)
class Finished(Event):
    """All workers exited with code 0."""


@dataclass(frozen=True)
class Ended(Event):
    """The agent exits soon, in this final phase: it must not get another world."""

    phase: str
    failure: wire.Failure | None = None


# Actions.


class Action:
    """Something to do."""


@dataclass(frozen=True)
class Publish(Action):
    """Send this state to the hub."""

    state: wire.AgentState


@dataclass(frozen=True)
class CloseStores(Action):
    """Close the stores of the last generation, which releases everything that blocks in them."""


@dataclass(frozen=True)
class OpenStore(Action):
    """Open a new store; answered by Listening."""


@dataclass(frozen=True)
class Enter(Action):
    """Connect to the store of this world; answered by Entered or Missed."""

    world: wire.World


@dataclass(frozen=True)
class Begin(Action):
    """Start the workers in this world, or send the world to the waiting sessions."""

    world: wire.World
    to_sessions: bool


@dataclass(frozen=True)
class Launch(Action):
    """Start the workers before a world exists: they create sessions and wait."""

    code: wire.Code | None = None


@dataclass(frozen=True)
class Exit(Action):
    """End torch's loop: the hub released this pod or, with `is_error`, the pod cannot take part."""

    code: int
    reason: str
    is_error: bool = False


@dataclass(frozen=True)
class Save(Action):
    """Ask the scripts for a checkpoint; answered by Saved. `alone`: they wait for a world, after so many steps."""

    alone: int = 0


@dataclass(frozen=True)
class Terminate(Action):
    """Send SIGTERM to the workers. With `has_grace` they may save: Blocked tells if they cannot."""

    has_grace: bool = False


@dataclass(frozen=True)
class CheckStopped(Action):
    """Check whether the workers have exited; answered by Stopped if they have."""


@dataclass(frozen=True)
class Kill(Action):
    """Send SIGKILL to the workers; answered by Stopped."""


@dataclass(frozen=True)
class KillProcesses(Action):
    """Send SIGKILL to all workers except these (pids), which can leave the collective and keep their memory."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KillSessions(Action):
    """Send SIGKILL to the sessions that did not leave their world in time: all except these (pids)."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AskPause(Action):
    """Ask the sessions to leave the world. If `announced`, they first agree on a common last step."""

    generation: int
    announced: bool


@dataclass(frozen=True)
class Examine(Action):
    """Collect the stacks of the workers; answered by Examined."""


@dataclass(frozen=True)
class Log(Action):
    text: str
    is_warning: bool = True


Actions = tuple[Action, ...]
