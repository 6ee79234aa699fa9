"""Where one operator breaks first: each limit as a function of the size, and the smallest size that exceeds it.

The size is the number of agents, in jobs of ten unless the limit is one of a single world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulation import scenarios
from benchmarks.simulation.constants import MESSAGES_OF_A_REAL_CHANGE, Constants, count_member_bytes
from elasticjob_operator.hub.limits import HubSettings, reconnect_seconds
from elasticjob_operator.membership import member_health

ETCD_BYTES = 1.5 * 2**20  # --max-request-bytes
MEMORY_BYTES = 4 * 2**30  # of the operator's pod
BASE_BYTES = 100 * 2**20  # of an operator without agents
REGROUP_GOAL = 1.0  # seconds
START_GOAL = 60.0  # seconds: the time that a changed operator may take until it looks at every job
BUSY = 0.7  # of a core: above it, queues grow much longer than the work


@dataclass(frozen=True)
class Limit:
    """`measure` gives what a size needs, in the unit of `bound`; `build` is what to do then."""

    name: str
    unit: str
    bound: float
    measure: Callable[[Constants, int], float]
    build: str


def answer_connecting(constants: Constants, agents: int) -> float:
    """Seconds until all agents are back after a new leader: the hub is busy, or they spread their attempts."""
    return max(agents * constants.handshake, reconnect_seconds(agents, HubSettings()))


def estimate_change(constants: Constants, agents: int) -> float:
    """Seconds of `scenarios.change`, whose hub is busy all the time."""
    return agents * constants.message * MESSAGES_OF_A_REAL_CHANGE + 4 * constants.latency


LIMITS = (
    Limit(
        "connections that one hub accepts",
        "agents",
        HubSettings().max_connections,
        lambda _constants, agents: agents,
        "a larger `max_connections`, once the limits below allow it",
    ),
    Limit(
        "heartbeats, share of a core",
        "",
        BUSY,
        scenarios.rest_share,
        "an interval that grows with the agents instead of ending at 6 s, then several hubs",
    ),
    Limit(
        "all agents back after a new leader, before a member that is not counts as lost",
        "s",
        member_health.Settings().restart_grace,
        answer_connecting,
        "a longer wait of a new leader that knows of many pods, then several hubs",
    ),
    Limit(
        "memory of the hub",
        "bytes",
        MEMORY_BYTES,
        lambda constants, agents: BASE_BYTES + agents * constants.agent_bytes,
        "several hubs; more than half of an agent's memory is TLS",
    ),
    Limit(
        "start of the operator, until its first pass",
        "s",
        START_GOAL,
        lambda constants, agents: agents * constants.listed,
        "lists by shard (a label of the job), so that each operator reads its own pods only",
    ),
    Limit(
        "one world: a regroup until the last member has heard of the next",
        "s",
        REGROUP_GOAL,
        estimate_change,
        "a tree: one agent of a rack tells the others",
    ),
    Limit(
        "one world: its members in the status of the job",
        "bytes",
        ETCD_BYTES,
        lambda _constants, agents: agents * count_member_bytes(),
        "members in objects of their own, a thousand each, and in the status only their number and a digest",
    ),
    Limit(
        "one loss a day on each node: share of the API server",
        "",
        BUSY,
        lambda constants, agents: agents / 86_400 * scenarios.WRITES_OF_A_LOSS * constants.write / constants.api_cores,
        "an API server and an etcd of their own for the jobs' objects; several clusters",
    ),
)


def find_break(limit: Limit, constants: Constants, largest: int = 10_000_000) -> int | None:
    """The smallest number of agents that exceeds the limit, to 1 %; None if even the largest does not."""
    low, high = 1, 1000
    while limit.measure(constants, high) <= limit.bound:
        low, high = high, high * 2
        if high > largest:
            return None
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if limit.measure(constants, middle) > limit.bound else (middle, high)
    return high


def find_breaks(constants: Constants) -> list[tuple[Limit, int | None]]:
    """All limits, the first to break first."""
    found = [(limit, find_break(limit, constants)) for limit in LIMITS]
    return sorted(found, key=lambda one: float("inf") if one[1] is None else one[1])
