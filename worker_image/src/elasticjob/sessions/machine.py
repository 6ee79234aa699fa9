"""The state machine of a session: `step(state, event) -> (state, actions)`. Pure; `worlds` executes it.

A session is *running* in a world; *interrupted* once all ranks have agreed to leave it after the same step; *broken*
after a member was lost; or *idle*: in no world, waiting for the next. Messages from the agent can arrive at any time,
even before this process enters the world that they refer to.

When a rank learns that the end of its world is announced, it promises to go on until the end of the step that it may
be in, and no further before it knows what all others have promised. The latest promised step is the last one for all:
every rank can reach it, because no other one stops before it. So the ranks agree without a message in each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from elasticjob.channel.place import Place


class Stage(Enum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    BROKEN = "broken"
    IDLE = "idle"


@dataclass(frozen=True)
class State:
    stage: Stage = Stage.IDLE
    generation: int = 0  # the latest generation that this process entered or tried to enter
    over: int = -1  # the newest generation that the agent ended ...
    lost: int = -1  # ... and the newest that it ended without notice
    error: str | None = None  # what broke the last world
    size: int = 1  # the number of ranks of the world
    done: int = 0  # steps in this world
    promised: int | None = None  # the step (counted in this world) after which this rank waits for the others' promises
    last: int | None = None  # the step after which all leave

    @property
    def is_over(self) -> bool:
        return self.over >= self.generation

    @property
    def is_lost(self) -> bool:
        """Whether a member was lost, so that collectives of this world may never complete."""
        return self.lost >= self.generation


# Events.


@dataclass(frozen=True)
class CalledOver:
    """The agent ended a generation. `announced`: all members are alive and can agree on the last step."""

    generation: int
    announced: bool


@dataclass(frozen=True)
class StepDone:
    """A step is applied on this rank; or several, while the world was not over: then they are only counted."""

    steps: int = 1


@dataclass(frozen=True)
class LastAgreed:
    """All ranks of a generation have promised a step, this one at the latest."""

    generation: int
    step: int


@dataclass(frozen=True)
class Broke:
    """An exception was raised that means the world is lost."""

    error: str


@dataclass(frozen=True)
class Left:
    """This rank has left its world."""


@dataclass(frozen=True)
class Called:
    """The agent sent a world to enter."""

    place: Place


@dataclass(frozen=True)
class Entered:
    """The ranks of the world agree on the training state."""


Event = CalledOver | StepDone | LastAgreed | Broke | Left | Called | Entered


# Actions.


@dataclass(frozen=True)
class Abort:
    """Free the main thread from a collective, or from the script's code."""


@dataclass(frozen=True)
class Promise:
    """Tell all ranks after which step of this world this one waits, and learn what they tell."""

    generation: int
    step: int


@dataclass(frozen=True)
class AwaitLast:
    """Wait until all ranks have promised a step."""


@dataclass(frozen=True)
class SayIdle:
    """Report to the agent that this rank waits for a world, and what broke the last one."""

    error: str | None


@dataclass(frozen=True)
class Enter:
    place: Place


Action = Abort | Promise | AwaitLast | SayIdle | Enter
Result = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Result:
    """The state after this event, and the actions to take."""
    match event:
        case CalledOver(generation, announced):
            over = max(state.over, generation)
            if announced:
                return _promise(replace(state, over=over))
            lost = replace(state, over=over, lost=max(state.lost, generation))
            return lost, (Abort(),) if lost.is_lost else ()  # a late word about an older world concerns nobody
        case StepDone(steps):
            return _end_step(replace(state, done=state.done + steps))
        case LastAgreed(generation, last):
            return _stop(replace(state, last=last)) if generation == state.generation else (state, ())
        case Broke(error):
            return replace(state, stage=Stage.BROKEN, error=error), ()
        case Left():
            return replace(state, stage=Stage.IDLE, error=None), (SayIdle(state.error),)
        case Called(place):
            # A message for an old world may arrive late. A world that has ended meanwhile is entered and fails at once.
            if state.stage is not Stage.IDLE or place.generation <= state.generation:
                return state, ()
            fresh = replace(state, size=place.world_size, done=0, promised=None, last=None)
            return replace(fresh, generation=place.generation), (Enter(place),)
        case Entered():
            return _promise(replace(state, stage=Stage.RUNNING, error=None))


def _promise(state: State) -> Result:
    if state.stage is not Stage.RUNNING or not state.is_over or state.size == 1 or state.promised is not None:
        return state, ()
    step = state.done + 1  # which it may be in
    return replace(state, promised=step), (Promise(state.generation, step),)


def _end_step(state: State) -> Result:
    if state.size == 1 and state.is_over:
        return replace(state, stage=Stage.INTERRUPTED), ()
    if state.last is None and state.promised is not None and state.done >= state.promised:
        return state, (AwaitLast(),)
    return _stop(state)


def _stop(state: State) -> Result:
    is_last = state.stage is Stage.RUNNING and state.done == state.last
    return (replace(state, stage=Stage.INTERRUPTED) if is_last else state), ()
