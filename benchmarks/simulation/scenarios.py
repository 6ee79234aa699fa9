"""What happens to an operator of some size: agents connect, worlds form and change, jobs are created, members are lost.

One process has the hub and the operator's decisions, on one core; `hubs` are so many of them, each with its own jobs.
The API server has its own cores. The agents' own time is not in the model: every agent is on another node.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.simulation.constants import HANDSHAKE_BYTES, Constants, count_looks, count_pings, frame_bytes
from benchmarks.simulation.engine import Simulation, Station
from elasticjob_operator.hub import limits

SENT_AT_ONCE = 32  # frames, before the hub looks at what has arrived
USERS = 8  # requests of users at a time
OPERATOR_REQUESTS = 32  # of the operator at a time
WRITES_OF_A_JOB = 3  # NetworkPolicy, spec.replicas, status: a disruption budget follows with the first world
WRITES_OF_A_LOSS = 5  # the pod's end and the new pod's start (kubelets), delete and create, one status
WAITS_AT_MOST = 60.0  # seconds of backlog at which a run of churn ends: it will not recover


@dataclass
class Outcome:
    """What a scenario took (seconds), and what it cost."""

    seconds: float = 0.0
    cpu: float = 0.0  # of all hubs
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class Site:
    """The machines of a scenario."""

    constants: Constants
    hubs: int = 1
    says_stopping: bool = True  # agents of the benchmark do not

    def __post_init__(self) -> None:
        self.simulation = Simulation()
        self.cores = [Station(self.simulation) for _ in range(self.hubs)]
        self.links = [Station(self.simulation) for _ in range(self.hubs)]
        self.api = Station(self.simulation, self.constants.api_cores)
        self.counts: Counter[str] = Counter()
        self.frames = frame_bytes()
        self.unsent: list[deque[tuple[str, Callable[[], None]]]] = [deque() for _ in range(self.hubs)]

    def send(self, hub: int, frame: str, then: Callable[[], None]) -> None:
        """The hub writes a frame; `then` happens at the agent. A batch of frames lets what has arrived go first."""
        self._count(frame, self.frames[frame])
        self.unsent[hub].append((frame, then))
        if len(self.unsent[hub]) == 1:
            self.simulation.after(0.0, lambda: self._send_batch(hub))

    def _send_batch(self, hub: int) -> None:
        unsent = self.unsent[hub]
        for number in range(min(SENT_AT_ONCE, len(unsent))):
            frame, then = unsent[number]
            size = self.frames[frame]
            self.cores[hub].work(self.constants.message, lambda size=size, then=then: self._travel(hub, size, then))  # type: ignore[misc]
        self.cores[hub].work(0.0, lambda: self._end_batch(hub))

    def _end_batch(self, hub: int) -> None:
        for _ in range(min(SENT_AT_ONCE, len(self.unsent[hub]))):
            self.unsent[hub].popleft()
        if self.unsent[hub]:
            self._send_batch(hub)

    def hear(self, hub: int, frame: str, then: Callable[[], None]) -> None:
        """An agent writes a frame; `then` happens when the hub has read it."""
        self._count(frame, self.frames[frame])
        self._travel(hub, self.frames[frame], lambda: self.cores[hub].work(self.constants.message, then))

    def _count(self, what: str, size: int) -> None:
        self.counts[what] += 1
        self.counts["bytes"] += size

    def _travel(self, hub: int, size: int, then: Callable[[], None]) -> None:
        seconds = size / self.constants.bandwidth
        self.links[hub].work(seconds, lambda: self.simulation.after(self.constants.latency, then))

    def write(self, count: int, then: Callable[[], None]) -> None:
        """So many writes to the API server, one after the other."""
        self.counts["writes"] += 1
        self.api.work(self.constants.write, then if count == 1 else lambda: self.write(count - 1, then))

    def finish(self) -> Outcome:
        self.simulation.run()
        return self.read(self.simulation.now)

    def read(self, seconds: float) -> Outcome:
        return Outcome(seconds, sum(core.busy for core in self.cores), self.counts)


def ignore() -> None:
    """Nothing follows."""


def connect(constants: Constants, agents: int, hubs: int = 1) -> Outcome:
    """All agents connect at once: until the last one has its welcome."""
    site = Site(constants, hubs)
    for agent in range(agents):
        hub = agent % hubs
        site.counts["bytes"] += HANDSHAKE_BYTES
        site.cores[hub].work(constants.handshake, lambda: site.simulation.after(constants.latency, ignore))
    return site.finish()


def form(constants: Constants, agents: int) -> Outcome:
    """One world of all agents: until the last one has heard of it. They answer that they run."""
    site, heard = Site(constants), [0.0]

    def hears() -> None:
        heard[0] = site.simulation.now
        site.hear(0, "running", ignore)

    for _ in range(agents):
        site.send(0, "world", hears)
    outcome = site.finish()
    outcome.seconds = heard[0]
    return outcome


def change(constants: Constants, agents: int, *, says_stopping: bool = True) -> Outcome:
    """One world loses a member and forms again: until the last survivor has heard of the new one."""
    site, heard = Site(constants, says_stopping=says_stopping), [0.0]
    regroup(site, 0, agents, lambda: heard.append(site.simulation.now))
    outcome = site.finish()
    outcome.seconds = heard[-1]
    return outcome


def regroup(site: Site, hub: int, agents: int, done: Callable[[], None]) -> None:
    """The messages of a change of one world. `done` happens when the last agent has heard of the new world."""
    left = Counter(ready=agents, heard=agents)

    def stops() -> None:
        if site.says_stopping:
            site.hear(hub, "stopping", ignore)
        site.hear(hub, "ready", is_ready)

    def is_ready() -> None:
        left["ready"] -= 1
        if left["ready"] == 0:
            for _ in range(agents):
                site.send(hub, "world", runs)

    def runs() -> None:
        left["heard"] -= 1
        site.hear(hub, "running", ignore)
        if left["heard"] == 0:
            done()

    for _ in range(agents):
        site.send(hub, "regroup", stops)


def rest(constants: Constants, agents: int, hubs: int = 1, seconds: float = 10.0) -> Outcome:
    """Heartbeats alone, for some seconds: `cpu` divided by `seconds` is the hubs' share of a core each."""
    site, settings = Site(constants, hubs), limits.HubSettings()
    for sweep in range(int(seconds / settings.sweep_seconds)):
        for hub in range(hubs):
            site.simulation.at(
                sweep * settings.sweep_seconds,
                lambda hub=hub: site.cores[hub].work(constants.look * agents / hubs),  # type: ignore[misc]
            )
    interval = limits.heartbeat_seconds(agents // hubs, settings)
    for agent in range(agents):
        at = interval * agent / agents
        while at < seconds:
            site.simulation.at(at, lambda hub=agent % hubs: site.cores[hub].work(constants.ping))  # type: ignore[misc]
            site.counts["ping"] += 1
            at += interval
    outcome = site.finish()
    outcome.seconds = seconds
    return outcome


def rest_share(constants: Constants, agents: int) -> float:
    """The share of its core that a hub uses for agents that do nothing."""
    return count_pings(agents) * constants.ping + count_looks(agents) * constants.look


def create(constants: Constants, jobs: int, pods: int, hubs: int = 1) -> Outcome:
    """Users create jobs: until the last pod exists. Users and operators wait for each of their requests."""
    site, last = Site(constants, hubs), [0.0]
    users, requests = deque(range(jobs)), [0] * hubs
    waiting: list[deque[Callable[[], None]]] = [deque() for _ in range(hubs)]

    def ask(hub: int, pod: bool) -> None:
        """One request of an operator, when one of its slots is free."""

        def go() -> None:
            site.write(1, answered)

        def answered() -> None:
            if pod:
                last[0] = site.simulation.now
            requests[hub] -= 1
            start(hub)

        waiting[hub].append(go)
        start(hub)

    def start(hub: int) -> None:
        while waiting[hub] and requests[hub] < OPERATOR_REQUESTS:
            requests[hub] += 1
            waiting[hub].popleft()()

    def submit() -> None:
        if users:
            job = users.popleft()
            site.write(1, lambda: submitted(job % hubs))

    def submitted(hub: int) -> None:
        site.cores[hub].work(constants.job / 2, lambda: reconcile(hub))
        submit()

    def reconcile(hub: int) -> None:
        for _ in range(WRITES_OF_A_JOB):
            ask(hub, pod=False)
        for _ in range(pods):
            site.cores[hub].work(constants.pod, lambda: ask(hub, pod=True))

    for _ in range(min(USERS, jobs)):
        submit()
    outcome = site.finish()
    outcome.seconds = last[0]
    return outcome


@dataclass(frozen=True)
class Churn:
    """Regroups under steady losses: seconds from a loss until the last survivor has heard of the next world."""

    regroups: tuple[float, ...]
    api_share: float
    hub_share: float
    kept_up: bool

    def percentile(self, share: float) -> float:
        ordered = sorted(self.regroups)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def churn(
    constants: Constants, jobs: int, agents: int, losses: float, seconds: float, hubs: int = 1, seed: int = 1
) -> Churn:
    """Jobs of `agents` each lose members, `losses` a second over all. A lost pod is replaced.

    Every loss costs the API server its writes, and the operator the life of a pod and the messages of a change. A
    regroup is over when both are.
    """
    site, rng, took = Site(constants, hubs), random.Random(seed), []
    pings_share = rest_share(constants, jobs * agents // hubs)

    def lose() -> None:
        began, hub = site.simulation.now, rng.randrange(jobs) % hubs
        site.cores[hub].work(constants.pod)
        ended = Counter(parts=2)

        def part() -> None:
            ended["parts"] -= 1
            if ended["parts"] == 0:
                took.append(site.simulation.now - began)

        site.write(WRITES_OF_A_LOSS, part)
        regroup(site, hub, agents, part)
        plan()

    def plan() -> None:
        behind = max(site.api.waits, *(core.waits for core in site.cores))
        if site.simulation.now < seconds and behind < WAITS_AT_MOST:
            site.simulation.after(rng.expovariate(losses), lose)

    # Heartbeats take their share of each core all the time: as slices of 50 ms.
    slice_seconds = 0.05
    for hub in range(hubs):
        for number in range(int(seconds / slice_seconds)):
            site.simulation.at(
                number * slice_seconds,
                lambda hub=hub: site.cores[hub].work(slice_seconds * pings_share),  # type: ignore[misc]
            )
    plan()
    site.simulation.run()
    end = max(site.simulation.now, seconds)
    api_share = site.api.busy / end / constants.api_cores
    hub_share = max(core.busy for core in site.cores) / end
    return Churn(tuple(took), api_share, hub_share, kept_up=end < seconds * 1.1 + 1)
