"""What a job does not say: pods that run without an agent, and worlds that run without a step. Pure.

Both look like training to everybody else, and may be it: what is told is what is known, and what to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.model.observe import Pod, parse_time

AGENT_SECONDS = 60.0  # that a trainer may run before its agent connects
STEP_SECONDS = 600.0  # that a world may run before its first step: loading and compiling take their time


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be told now, and when to look again."""

    reason: str = ""
    message: str = ""
    at: float | None = None


def find_agentless(
    pods: Iterable[Pod], heard: Collection[str], status: api.Status, *, hub_started: float, now: float
) -> Finding:
    """Pods of a job without a world whose trainers run, and from which (by UID) no agent was ever heard."""
    if status.rendezvous.generation:
        return Finding()
    silent = [p for p in pods if p.live and p.started and p.began is not None and p.uid not in heard]
    due = {p.name: max(p.began or 0.0, hub_started) + AGENT_SECONDS for p in silent}
    found = sorted(name for name, at in due.items() if at <= now)
    if not found:
        return Finding(at=min(due.values(), default=None))
    names = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    message = (
        f"{names}: the command runs, and no elastic agent has connected from it for {AGENT_SECONDS:.0f} s."
        " If it trains, each pod does so alone. Where its log shows no trouble with the operator's hub, start the"
        " script with torchrun or elasticjob-run in place of python or another launcher; scripts that use accelerate,"
        " Lightning or transformers run under torchrun as they are"
    )
    return Finding("NoAgent", message, min((at for at in due.values() if at > now), default=None))


def find_no_progress(status: api.Status, now: float) -> Finding:
    """A world that has run for long and has reported no step. `status` is that of this pass."""
    running, generation = status.condition("Running"), status.rendezvous.generation
    if running is None or running.status != "True" or status.goodput.step_generation == generation:
        return Finding()
    since = parse_time(running.last_transition_time) or now
    formed = parse_time(status.rendezvous.formed_time) or since
    due = max(since, formed) + STEP_SECONDS
    if now < due:
        return Finding(at=due)
    minutes = f"generation {generation} has run for {STEP_SECONDS / 60:.0f} minutes"
    if status.goodput.measured is api.Measured.STEPS:
        return Finding("NoStep", f"{minutes} and has reported no step, which earlier ones did: see the workers' logs")
    unknown = "whether it makes steps is not known, since the script does not call elasticjob.report"
    return Finding("NotReported", f"{minutes}; {unknown}")
