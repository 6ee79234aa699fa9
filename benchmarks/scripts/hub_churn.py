"""Steady churn: agents are lost all the time, others take their places, and every job regroups as soon as it can.

Losses come in waves, as a reclaimed node or a failed rack takes its pods: a world of a thousand that loses 2 % a second
loses twenty members at once, each second. A world of ten loses one member in five seconds. With `one_by_one` the same
share is lost one agent after the other, chosen from all: then a world of a thousand loses one each 50 ms, which is less
than it takes to enter any world.

The decisions here are the simplest possible: a world that has lost a member is over, and the next one has all agents
that are ready when every survivor is. What is measured is the hub: its messages, connections and registry.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.scripts.agent_swarm import job_of
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub.server import Hub

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_SECONDS = 0.05  # between kills
PASS_SECONDS = 0.02  # between two passes over a job, as with the operator's coalesced wake-ups


class Killer(Protocol):
    """The swarm of agents."""

    cpu: float

    async def event(self, event: str) -> dict[str, Any]: ...

    async def tell(self, **command: Any) -> None: ...


@dataclass
class Job:
    """One job, its world, and how long each of its regroups took."""

    key: JobKey
    generation: int = 0
    members: dict[str, str] = field(default_factory=dict)  # pod UID -> agent
    regrouping: bool = False
    began: float | None = None  # of the regroup that is under way
    took: list[float] = field(default_factory=list)

    def decide(self, hub: Hub, wanted: int, now: float) -> None:
        """One pass: what follows from the agents' states."""
        agents = hub.agents(self.key)
        there = {uid: agent for uid, agent in agents.items() if agent.connected}
        staying = [uid for uid, name in self.members.items() if uid in there and there[uid].agent_id == name]
        ready = [uid for uid, agent in there.items() if agent.state.phase is wire.AgentPhase.READY]
        if self.generation == 0:
            if len(ready) == wanted:
                self._announce(hub, ready, there)
        elif self.regrouping:
            if all(self._has_left(there[uid]) for uid in staying):
                self._announce(hub, ready, there)
        else:
            lost = len(staying) < len(self.members)
            if all(there[uid].state.generation == self.generation for uid in staying):
                self._end_regroup(now)
            if lost:
                self.began = now if self.began is None else self.began
                self.regrouping = True
                regroup = wire.Regroup(generation=self.generation, reason="lost")
                hub.direct(self.key, dict.fromkeys(staying, regroup))

    def _has_left(self, agent: Any) -> bool:
        return bool(agent.state.phase is wire.AgentPhase.READY and agent.state.generation == self.generation)

    def _end_regroup(self, now: float) -> None:
        if self.began is not None:
            self.took.append(now - self.began)
            self.began = None

    def _announce(self, hub: Hub, ready: Sequence[str], there: Any) -> None:
        self.generation += 1
        self.regrouping = False
        self.members = {uid: there[uid].agent_id for uid in ready}
        members = tuple(wire.Member(pod=uid, rank=rank, address="10.0.0.1", nproc=8) for rank, uid in enumerate(ready))
        store = wire.Store(address="10.0.0.1", port=40_000)
        one = wire.World(generation=self.generation, rank=0, members=members, store=store)
        hub.direct(self.key, {uid: one.model_copy(update={"rank": rank}) for rank, uid in enumerate(ready)})


class Waves:
    """When a job loses which members: `rate` of them a second, at least one and as many as a second costs at once."""

    def __init__(self, numbers: Sequence[int], rate: float, phase: float) -> None:
        """`phase`: from 0 to 1, so that jobs do not all lose members in the same moment."""
        self._numbers = numbers
        self._size = max(1, round(len(numbers) * rate))
        self._every = self._size / (len(numbers) * rate)
        self._next = self._every * phase

    def take(self, now: float) -> list[int]:
        """The members that are lost by now, in seconds since the beginning, and were not before."""
        if now < self._next:
            return []
        self._next += self._every
        return random.sample(self._numbers, self._size)


class Churn:
    """`agents` in one world of `members` and many of ten, of which `rate` (a share) are lost each second."""

    def __init__(self, agents: int, members: int, rate: float, seconds: float, *, one_by_one: bool = False) -> None:
        self._agents, self._rate, self._seconds, self._one_by_one = agents, rate, seconds, one_by_one
        groups: dict[JobKey, list[int]] = {}
        for number in range(agents):
            groups.setdefault(("default", job_of(number, members)), []).append(number)
        self._sizes = {key: len(numbers) for key, numbers in groups.items()}
        self._jobs = {key: Job(key) for key in groups}
        self._waves = [Waves(numbers, rate, random.random()) for numbers in groups.values()]
        self._woken: dict[JobKey, None] = {}

    def wake(self, key: JobKey) -> None:
        self._woken[key] = None

    async def run(self, hub: Hub, swarm: Killer) -> dict[str, Any]:
        """The report. CPU is that of this process: the hub and these decisions."""
        await swarm.event("seated")
        deciding = asyncio.create_task(self._decide_forever(hub))
        try:
            while any(job.generation == 0 for job in self._jobs.values()):  # noqa: ASYNC110 - as the operator's passes
                await asyncio.sleep(PASS_SECONDS)
            start, cpu, swarm_cpu, most = time.monotonic(), time.process_time(), swarm.cpu, 0.0
            killed = 0
            while (now := time.monotonic() - start) < self._seconds:
                lost = self._choose(now, killed)
                if lost:
                    await swarm.tell(kill=lost)
                    killed += len(lost)
                most = max(most, _resident_mib())
                await asyncio.sleep(STEP_SECONDS)
            seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        finally:
            deciding.cancel()
        large, *others = self._jobs.values()
        took, small = sorted(large.took), sorted(seconds for job in others for seconds in job.took)
        if not took or not small:
            raise SystemExit("no world formed again: lost members were not noticed, or the machine is too busy")
        return {
            "regroups": len(took),
            "smallRegroups": len(small),
            "smallMedian": small[len(small) // 2],
            "smallP99": small[int(0.99 * len(small))],
            "killed": killed,
            "median": took[len(took) // 2],
            "p99": took[int(0.99 * len(took))],
            "max": took[-1],
            "hubCpu": cpu / seconds,
            "swarmCpu": (swarm.cpu - swarm_cpu) / seconds,
            "mib": most,
            "silent": hub.counts["lost:silent"],
        }

    def _choose(self, now: float, killed: int) -> list[int]:
        """The agents to kill now, by number. `killed`: how many were before."""
        if self._one_by_one:
            return random.sample(range(self._agents), int(self._agents * self._rate * now) - killed)
        return [number for waves in self._waves for number in waves.take(now)]

    async def _decide_forever(self, hub: Hub) -> None:
        while True:
            woken, self._woken = self._woken, {}
            for key in woken:
                if key in self._jobs:
                    self._jobs[key].decide(hub, self._sizes[key], time.monotonic())
            await asyncio.sleep(PASS_SECONDS)


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
