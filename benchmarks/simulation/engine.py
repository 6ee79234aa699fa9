"""Discrete events, and stations that serve one thing after the other. Pure: no clock but the simulated one."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]


@dataclass
class Simulation:
    """Events in the order of their times; those of equal times in the order in which they were planned."""

    now: float = 0.0
    _events: list[tuple[float, int, Action]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, time: float, action: Action) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is left to happen, or the time `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        if self._events:
            self.now = until


@dataclass
class Station:
    """Servers that take work in the order of its arrival: a core, the cores of the API server, a network link.

    `busy` are the seconds of work done so far, of all servers together; `served` the pieces of work.
    """

    simulation: Simulation
    servers: int = 1
    busy: float = 0.0
    served: int = 0
    _free: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = [0.0] * self.servers

    def work(self, seconds: float, then: Action | None = None) -> None:
        """Queue a piece of work; `then` happens at its end."""
        end = max(self.simulation.now, self._free[0]) + seconds
        heapq.heapreplace(self._free, end)
        self.busy += seconds
        self.served += 1
        if then is not None:
            self.simulation.at(end, then)

    @property
    def waits(self) -> float:
        """Seconds that new work would wait now."""
        return max(0.0, self._free[0] - self.simulation.now)
