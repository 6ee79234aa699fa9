"""Decides what becomes of a session: `step(state, event) -> (state, actions)`. Pure; `worlds` carries it out.

A session is *running* in a world; *interrupted*, when all ranks have agreed to leave it after the same step; *broken*,
when a member was lost; or *idle*: in no world, waiting for the next. What the agent says arrives at any time, also
before the world that it is about.
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
    generation: int = 0  # the latest that this process entered, or tried to
    over: int = -1  # the newest generation that the agent called over ...
    lost: int = -1  # ... and the newest that it called over without notice
    error: str | None = None  # what broke the last world

    @property
    def is_over(self) -> bool:
        return self.over >= self.generation

    @property
    def is_lost(self) -> bool:
        """Whether a member is gone, so that nothing in this world can be waited for."""
        return self.lost >= self.generation


# Events.


@dataclass(frozen=True)
class CalledOver:
    """The agent says that a generation ends; announced: all members are there to agree on the last step."""

    generation: int
    announced: bool


@dataclass(frozen=True)
class StepDone:
    """A step is applied here. `agreed`: all ranks were told at the step before to stop after this one."""

    agreed: bool
    alone: bool  # a world of one


@dataclass(frozen=True)
class Broke:
    """Something in this world raised."""

    error: str


@dataclass(frozen=True)
class Left:
    """This rank is out of its world."""


@dataclass(frozen=True)
class Called:
    """The agent names a world to enter."""

    place: Place


@dataclass(frozen=True)
class Entered:
    """The ranks of the world have agreed on the state that counts."""


Event = CalledOver | StepDone | Broke | Left | Called | Entered


# Actions.


@dataclass(frozen=True)
class Abort:
    """Free the main thread, from a collective or from code of the script."""


@dataclass(frozen=True)
class Vote:
    """Let all ranks know, at the end of the next step, whether one of them was told that the world is over."""

    over: bool


@dataclass(frozen=True)
class SayIdle:
    """Tell the agent that this rank waits for a world, and what broke the last one."""

    error: str | None


@dataclass(frozen=True)
class Enter:
    place: Place


Action = Abort | Vote | SayIdle | Enter
Result = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Result:
    """What a session knows after this event, and what it does."""
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
            # An old world may still be on its way; one that was called over meanwhile is entered, and fails at once.
            if state.stage is not Stage.IDLE or place.generation <= state.generation:
                return state, ()
            return replace(state, generation=place.generation), (Enter(place),)
        case Entered():
            return replace(state, stage=Stage.RUNNING, error=None), ()


def _end_step(state: State, agreed: bool, alone: bool) -> Result:
    if agreed or (alone and state.is_over):
        return replace(state, stage=Stage.INTERRUPTED), ()
    return state, () if alone else (Vote(state.is_over),)
