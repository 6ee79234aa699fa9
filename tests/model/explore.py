"""Tries everything that can happen in the model, and looks at all states together: safety, deadlock, progress."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from model.regroup_model import Rules, State, View, is_goal, runs_unwritten, start, successors, view_of, whole_worlds


@dataclass
class Explored:
    states: int = 0
    steps: int = 0
    views: set[View] = field(default_factory=set)  # everything that the operator had to decide on
    violations: list[str] = field(default_factory=list)


def explore(agents: int, rules: Rules, *, running: bool = False) -> Explored:
    """Breadth first, so that a violation comes with a shortest trace."""
    first, found = start(agents, running=running), Explored()
    numbers: dict[State, int] = {first: 0}
    parents: list[tuple[int, str]] = [(-1, "start")]
    into: list[list[int]] = [[]]  # by state: from which states a step without a new fault leads to it
    goals: list[int] = []
    todo = deque([first])
    while todo:
        state = todo.popleft()
        number = numbers[state]
        wrong = _look_at(state)
        if wrong:
            found.violations.append(f"{wrong}: {_trace(parents, number)}")
            break
        if state.up and state.announce is None:
            found.views.add(view_of(state, rules))
        if is_goal(state, rules):
            goals.append(number)
        for what, after in successors(state, rules):
            found.steps += 1
            known = numbers.get(after)
            if known is None:
                known = numbers[after] = len(parents)
                parents.append((number, what))
                into.append([])
                todo.append(after)
            if after.faults == state.faults:
                into[known].append(number)
    found.states = len(parents)
    if not found.violations:
        stuck = _cannot_reach(goals, into)
        if stuck is not None:
            found.violations.append(f"it never trains again: {_trace(parents, stuck)}")
    return found


def _look_at(state: State) -> str:
    whole = whole_worlds(state)
    if len(whole) > 1:
        return f"generations {whole} train at once"
    return "a world that was never written runs" if runs_unwritten(state) else ""


def _cannot_reach(goals: list[int], into: list[list[int]]) -> int | None:
    """A state from which no goal can be reached without another fault, where there is one."""
    reached = bytearray(len(into))
    todo = list(goals)
    for number in goals:
        reached[number] = 1
    while todo:
        for before in into[todo.pop()]:
            if not reached[before]:
                reached[before] = 1
                todo.append(before)
    stuck = reached.find(0)
    return None if stuck < 0 else stuck


def _trace(parents: list[tuple[int, str]], number: int) -> str:
    steps = []
    while number >= 0:
        number, what = parents[number]
        steps.append(what)
    return " → ".join(reversed(steps))
