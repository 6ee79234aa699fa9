"""Detects missing signals: pods that run without an agent, and worlds that run without reporting a step. Pure.

Both may be training normally, so the messages state only what is known and what to check.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.model.observe import Agent, Pod
from elasticjob_operator.times import parse_time

AGENT_SECONDS = 60.0  # time for the agent to connect after its trainer container has started
STEP_SECONDS = 600.0  # time for the first step of a world, including loading and compiling


@dataclass(frozen=True, slots=True)
class Finding:
    """The reason and message of a condition, and when to check again."""

    reason: str = ""
    message: str = ""
    at: float | None = None


def find_agentless(
    pods: Iterable[Pod], heard: Collection[str], advise: Callable[[], str], *, hub_started: float, now: float
) -> Finding:
    """Pods of a job without a world whose trainer is running and whose agent has never connected (by UID).

    `advise` says what to do about this command.
    """
    silent = [p for p in pods if p.live and p.started and p.began is not None and p.uid not in heard]
    due = {p.name: max(p.began or 0.0, hub_started) + AGENT_SECONDS for p in silent}
    found = sorted(name for name, at in due.items() if at <= now)
    if not found:
        return Finding(at=min(due.values(), default=None))
    names = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    dead = next((f"; {p.dead_sidecar}" for p in silent if p.name in found and p.dead_sidecar), "")
    message = (
        f"{names}: the command has been running for {AGENT_SECONDS:.0f} s, but no elastic agent has connected{dead}."
        f" If it is training, each pod trains alone. {advise()}"
    )
    return Finding("NoAgent", message, min((at for at in due.values() if at > now), default=None))


def find_masked_hang(world: api.RendezvousStatus, agents: Mapping[str, Agent]) -> Finding:
    """A world of which no main thread goes on, while something beside them does: that may hide a hang, or be work."""
    said = [agents[member.uid].state for member in world.members if member.uid in agents]
    going = [m.pod for m in world.members if m.uid in agents and agents[m.uid].state.beside == world.generation]
    still = all(world.generation in (state.quiet, state.beside) for state in said)
    if not going or not still or len(said) < len(world.members):
        return Finding()
    names = ", ".join(going[:5]) + (f" and {len(going) - 5} more" if len(going) > 5 else "")
    return Finding(
        "MaybeHung",
        f"no main thread of generation {world.generation} goes on, only something beside them in {names} (a thread, a"
        " child, a log, or a disk that does not answer): it may be an upload, or hide a hang, which is ended only after"
        " five times the timeout, or half an hour. kubectl elasticjob diagnose shows where the workers are",
    )


def find_no_progress(status: api.Status, now: float) -> Finding:
    """A world that has been running for a long time without reporting a step. `status`: that of this pass."""
    running, generation = status.condition("Running"), status.rendezvous.generation
    if running is None or running.status != "True" or status.goodput.step_generation == generation:
        return Finding()
    since = parse_time(running.last_transition_time) or now
    formed = parse_time(status.rendezvous.formed_time) or since
    due = max(since, formed) + STEP_SECONDS
    if now < due:
        return Finding(at=due)
    minutes = f"generation {generation} has been running for {STEP_SECONDS / 60:.0f} minutes"
    if status.goodput.measured is api.Measured.STEPS:
        return Finding(
            "NoStep", f"{minutes} without reporting a step, although earlier generations did: see the workers' logs"
        )
    unknown = "its progress is unknown because the script does not call elasticjob.report"
    return Finding("NotReported", f"{minutes}; {unknown}")
