"""The state machine of a session: `step(state, event) -> (state, actions)`. Pure; `worlds` executes it.

A session is *running* in a world; *interrupted* once all ranks have agreed to leave it after the same step; *broken*
after a member was lost; or *idle*: in no world, waiting for the next. Messages from the agent can arrive at any time,
even before this process enters the world that they refer to.
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
    """A step is applied on this rank. `agreed`: in the step before, all ranks agreed to stop after this one."""

    agreed: bool
    alone: bool  # the world has one rank


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


Event = CalledOver | StepDone | Broke | Left | Called | Entered


# Actions.


@dataclass(frozen=True)
class Abort:
    """Free the main thread from a collective, or from the script's code."""


@dataclass(frozen=True)
class Vote:
    """At the end of the next step, let all ranks learn whether the agent has ended the world on any of them."""

    over: bool


@dataclass(frozen=True)
class SayIdle:
    """Report to the agent that this rank waits for a world, and what broke the last one."""

    error: str | None


@dataclass(frozen=True)
class Enter:
    place: Place


Action = Abort | Vote | SayIdle | Enter
Result = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Result:
    """The state after this event, and the actions to take."""
    match event:
        case CalledOver(generation, announced):
            over = max(state.over, generation)
            if announced:
                return replace(state, over=over), ()
            return replace(state, over=over, lost=max(state.lost, generation)), (Abort(),)
        case StepDone(agreed, alone):
            return _end_step(state, agreed, alone)
        case Broke(error):
            return replace(state, stage=Stage.BROKEN, error=error), ()
        case Left():
            return replace(state, stage=Stage.IDLE, error=None), (SayIdle(state.error),)
        case Called(place):
            # A message for an old world may arrive late. A world that has ended meanwhile is entered and fails at once.
            if state.stage is not Stage.IDLE or place.generation <= state.generation:
                return state, ()
            return replace(state, generation=place.generation), (Enter(place),)
        case Entered():
            return replace(state, stage=Stage.RUNNING, error=None), ()


def _end_step(state: State, agreed: bool, alone: bool) -> Result:
    if agreed or (alone and state.is_over):
        return replace(state, stage=Stage.INTERRUPTED), ()
    return state, () if alone else (Vote(state.is_over),)
