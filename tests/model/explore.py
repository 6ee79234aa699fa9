"""Explores all events in the model, and checks all states together: safety, deadlock, progress.

Millions of states fit in memory because only the current level is kept: for visited states there is a hash and a
number. Two states with the same 64-bit hash would count as one; with ten million states the probability is 1 in
300,000.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from model.canonical import canonical
from model.regroup_model import (
    Rules,
    Seat,
    State,
    View,
    is_goal,
    runs_unwritten,
    seat_of,
    start,
    successors,
    view_of,
    whole_worlds,
)


@dataclass
class Explored:
    states: int = 0
    steps: int = 0
    views: set[View] = field(default_factory=set)  # everything that the operator had to decide on
    seats: set[Seat] = field(default_factory=set)  # everything that an agent had to decide on
    violations: list[str] = field(default_factory=list)


class _Graph:
    """The steps between numbered states."""

    def __init__(self) -> None:
        self.parents = array("i")
        self.sources, self.targets = array("I"), array("I")  # of steps without a new fault
        self.goals = array("I")

    def find_stuck(self) -> int | None:
        """A state from which no goal can be reached without another fault, if there is one."""
        count = len(self.parents)
        sources, targets = np.frombuffer(self.sources, np.uint32), np.frombuffer(self.targets, np.uint32)
        order = np.argsort(targets, kind="stable")
        before = sources[order]
        first = np.searchsorted(targets[order], np.arange(count + 1))
        reached = np.zeros(count, dtype=bool)
        todo = np.frombuffer(self.goals, np.uint32)
        reached[todo] = True
        while len(todo):
            found = np.concatenate([before[first[n] : first[n + 1]] for n in todo]) if len(todo) else todo
            todo = np.unique(found[~reached[found]])
            reached[todo] = True
        stuck = np.flatnonzero(~reached)
        return int(stuck[0]) if len(stuck) else None


def explore(agents: int, rules: Rules, *, running: bool = False, late: bool = False) -> Explored:
    """Breadth first, so that a violation has a shortest trace."""
    first, found, graph = canonical(start(agents, running=running, late=late)), Explored(), _Graph()
    numbers = {hash(first): 0}
    graph.parents.append(-1)
    level = [(0, first)]
    while level and not found.violations:
        level = _explore_level(level, rules, numbers, graph, found, first)
    found.states = len(numbers)
    if not found.violations and graph.goals:
        stuck = graph.find_stuck()
        if stuck is not None:
            found.violations.append(f"it never trains again: {_trace(first, rules, numbers, graph, stuck)}")
    elif not found.violations:
        found.violations.append("it never trains")
    return found


def _explore_level(
    level: list[tuple[int, State]],
    rules: Rules,
    numbers: dict[int, int],
    graph: _Graph,
    found: Explored,
    first: State,
) -> list[tuple[int, State]]:
    after_next: list[tuple[int, State]] = []
    for number, state in level:
        wrong = _look_at(state)
        if wrong:
            found.violations.append(f"{wrong}: {_trace(first, rules, numbers, graph, number)}")
            return []
        if state.up and not state.announcing:
            found.views.add(view_of(state, rules))
        found.seats.update(seat_of(agent) for agent in state.agents if agent.alive)
        if is_goal(state, rules):
            graph.goals.append(number)
        for _, raw in successors(state, rules):
            found.steps += 1
            after = canonical(raw)
            key = hash(after)
            known = numbers.get(key)
            if known is None:
                known = numbers[key] = len(numbers)
                graph.parents.append(number)
                after_next.append((known, after))
            if after.faults == state.faults:
                graph.sources.append(number)
                graph.targets.append(known)
    return after_next


def _look_at(state: State) -> str:
    whole = whole_worlds(state)
    if len(whole) > 1:
        return f"generations {whole} train at once"
    return "a world that was never written runs" if runs_unwritten(state) else ""


def _trace(first: State, rules: Rules, numbers: dict[int, int], graph: _Graph, number: int) -> str:
    """What happened, found again step by step: the way is remembered as numbers only."""
    way = [number]
    while way[-1]:
        way.append(graph.parents[way[-1]])
    state, told = first, ["start"]
    for wanted in reversed(way[:-1]):
        what, state = next(
            (w, after) for w, raw in successors(state, rules) if numbers.get(hash(after := canonical(raw))) == wanted
        )
        told.append(what)
    return " → ".join(told)
