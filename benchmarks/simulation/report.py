"""What the model says, as values: the check against the measurements, the future sizes, and where it breaks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.simulation import limits, scenarios
from benchmarks.simulation.constants import FITTED_AT, Constants, fit

TOLERANCE = 0.2
EXCEPTIONS = {
    "100 agents: form a world": "its CPU is 4.4 ms; the rest is processes that wake up",
    "1000 x 1: until all pods exist": "the operator's own work for so many jobs does not hide behind the API server's",
    "100 agents: lose a member and form the next world": "the benchmark pauses for 20 ms in it, and uses 9 ms of CPU",
    "100 agents: heartbeats, CPU a second": "an event loop at rest uses 6 ms, whatever the number of agents",
    "100 agents: memory of an agent": "buffers of the process count as theirs: bare connections take 49 KiB too",
}
AGENTS, JOBS = 100_000, 10_000
SHARDS = (1, 10, 20)
CHURN_SECONDS = 5.0
LOSSES = (1.0, 20.0, 100.0)  # a second


@dataclass(frozen=True)
class Check:
    """One number that both have. `use` is `fitted` if the constants were derived from it."""

    name: str
    measured: float
    model: float
    use: str

    @property
    def error(self) -> float:
        return self.model / self.measured - 1


def check_hub(constants: Constants, hub: Mapping[tuple[str, int], float]) -> list[Check]:
    """Every number of the hub's table against the model."""
    models: dict[str, tuple[str, Callable[[int], float]]] = {
        "connect": ("connect", lambda n: scenarios.connect(constants, n).seconds),
        "form": ("form a world", lambda n: scenarios.form(constants, n).seconds),
        "change": (
            "lose a member and form the next world",
            lambda n: scenarios.change(constants, n, says_stopping=False).seconds,
        ),
        "heartbeats": ("heartbeats, CPU a second", lambda n: scenarios.rest(constants, n).cpu / 10),
        "memory": ("memory of an agent", lambda _: constants.agent_bytes),
    }
    found = []
    for (what, agents), measured in hub.items():
        name, model = models[what]
        use = "fitted" if agents == FITTED_AT else "checked"
        found.append(Check(f"{agents} agents: {name}", measured, model(agents), use))
    return found


def check_creation(constants: Constants, creation: Mapping[tuple[int, int], float]) -> list[Check]:
    return [
        Check(f"{jobs} x {pods}: until all pods exist", took, scenarios.create(constants, jobs, pods).seconds, "fitted")
        for (jobs, pods), took in creation.items()
    ]


def find_bad(checks: list[Check]) -> list[Check]:
    """What is further off than the tolerance, without a reason."""
    return [one for one in checks if abs(one.error) > TOLERANCE and one.name not in EXCEPTIONS]


def simulate(hub: Mapping[tuple[str, int], float], creation: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    """Everything that docs/scale.md shows, as JSON values."""
    constants = fit(hub)
    checks = [*check_hub(constants, hub), *check_creation(constants, creation)]
    return {
        "checks": [vars(one) for one in checks],
        "breaks": [
            {"limit": limit.name, "bound": limit.bound, "unit": limit.unit, "agents": agents, "build": limit.build}
            for limit, agents in limits.find_breaks(constants)
        ],
        "sizes": [describe(constants, shards) for shards in SHARDS],
        "creation": scenarios.create(constants, JOBS, AGENTS // JOBS, SHARDS[-1]).seconds,
        "churn": [describe_churn(constants, losses) for losses in LOSSES],
    }


def describe(constants: Constants, shards: int) -> dict[str, float]:
    """100,000 agents in 10,000 jobs on so many hubs."""
    return {
        "shards": shards,
        "connect": scenarios.connect(constants, AGENTS, shards).seconds,
        "heartbeats": scenarios.rest(constants, AGENTS, shards).cpu / 10 / shards,
        "memory": limits.BASE_BYTES + AGENTS // shards * constants.agent_bytes,
        "start": AGENTS // shards * constants.listed,
    }


def describe_churn(constants: Constants, losses: float) -> dict[str, float]:
    """The same on the most hubs, while members are lost."""
    found = scenarios.churn(constants, JOBS, AGENTS // JOBS, losses, CHURN_SECONDS, SHARDS[-1])
    return {
        "losses": losses,
        "median": found.percentile(0.5),
        "p99": found.percentile(0.99),
        "api": found.api_share,
        "hub": found.hub_share,
        "keptUp": found.kept_up,
    }
