"""What happens to an agent (events), and what it does (actions). All of them are frozen events.

`machine` decides with them; `executor` reports events and carries out actions.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.protocol import wire


@dataclass(frozen=True)
class HubView:
    """What is known of the hub."""

    directive: wire.Directive | None = None  # the last one counts, also while the hub is away
    welcome: wire.Welcome | None = None  # the latest
    connected: bool = False
    rejected: bool = False  # when we last came to it, it did not know this pod
    fatal: str | None = None  # why the connection is over for good
    problem: str | None = None  # why there is no connection now


# Events.


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Heard:
    """The hub said something, came or went. Always the whole of what is known."""

    hub: HubView


@dataclass(frozen=True)
class Terminated:
    """SIGTERM."""


@dataclass(frozen=True)
class Sized:
    """How many workers this pod has."""

    nproc: int


@dataclass(frozen=True)
class Wanted:
    """torch wants to start workers; none runs. `found` is how the last ones failed, as torch knows it."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Listening:
    """A new store is open."""

    store: wire.Store


@dataclass(frozen=True)
class Entered:
    """The store of this generation answers."""

    generation: int


@dataclass(frozen=True)
class Missed:
    """This generation ended before its store answered."""

    generation: int


@dataclass(frozen=True)
class Parked:
    """torch's loop waits until the workers have stopped."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class Hung:
    """The workers make no steps."""


@dataclass(frozen=True)
class Examined:
    evidence: wire.Failure
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Saved:
    """Every script that was asked to save has done so, or has ended."""


@dataclass(frozen=True)
class Stopped:
    """No worker runs any more."""

    found: wire.Failure | None = None


@dataclass(frozen=True)
class SessionsMade:
    """All workers of this generation have made a session."""

    generation: int


@dataclass(frozen=True)
class Idle:
    """A session has left its world and waits for the next; `error` says what broke the last one."""

    pid: int
    error: str | None = None


@dataclass(frozen=True)
class Gone:
    """A worker has hung up."""

    pid: int


@dataclass(frozen=True)
class Finished:
    """The workers ended well."""


@dataclass(frozen=True)
class Ended:
    """The agent is about to end: its last word."""

    phase: str
    failure: wire.Failure | None = None


Event = (
    Tick
    | Heard
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
    | Stopped
    | SessionsMade
    | Idle
    | Gone
    | Finished
    | Ended
)


# Actions.


@dataclass(frozen=True)
class Say:
    """Tell the hub."""

    state: wire.AgentState


@dataclass(frozen=True)
class CloseStores:
    """Nobody is to wait in the store of the last generation any longer."""


@dataclass(frozen=True)
class OpenStore:
    """Listen with a new store; answered by Listening."""


@dataclass(frozen=True)
class Enter:
    """Connect to the store of this world; answered by Entered or Missed."""

    world: wire.World


@dataclass(frozen=True)
class Begin:
    """Start the workers in this world, or send it to the sessions that wait."""

    world: wire.World
    to_sessions: bool


@dataclass(frozen=True)
class Launch:
    """Start the workers before there is a world: they make sessions and wait."""


@dataclass(frozen=True)
class Exit:
    """Let torch's loop end: this pod is let go, or (`is_error`) cannot take part."""

    code: int
    reason: str
    is_error: bool = False


@dataclass(frozen=True)
class Save:
    """Ask the scripts for a checkpoint; answered by Saved."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM to the workers."""


@dataclass(frozen=True)
class Look:
    """Answered by Stopped where no worker runs."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the workers; answered by Stopped."""


@dataclass(frozen=True)
class KillProcesses:
    """SIGKILL to all workers but these (pids), which can be freed and keep their memory."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KillSessions:
    """SIGKILL to the sessions that did not leave their world in time: all but these (pids)."""

    but: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AskPause:
    """Ask the sessions to leave the world; with notice they agree on the last step."""

    generation: int
    announced: bool


@dataclass(frozen=True)
class Examine:
    """Find out where the workers are; answered by Examined."""


@dataclass(frozen=True)
class Log:
    text: str
    is_warning: bool = True


Action = (
    Say
    | CloseStores
    | OpenStore
    | Enter
    | Begin
    | Launch
    | Exit
    | Save
    | Terminate
    | Look
    | Kill
    | KillProcesses
    | KillSessions
    | AskPause
    | Examine
    | Log
)
Actions = tuple[Action, ...]
