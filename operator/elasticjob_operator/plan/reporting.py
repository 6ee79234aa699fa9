"""Conditions, progress and events. Pure.

Every pass computes the complete status from the previous one and the decision; it is written only if it differs.
Messages contain nothing that changes from second to second, so a stable job causes no writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.failures.classify import CORRUPT, Failure, advise
from elasticjob_operator.history import goodput, memory, moments
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.membership.decide import Decision, State
from elasticjob_operator.membership.member_health import MemberHealth
from elasticjob_operator.model import errortext
from elasticjob_operator.model.containers import PULL_REASONS
from elasticjob_operator.model.observe import Agent, Pod
from elasticjob_operator.model.revise import revise
from elasticjob_operator.sizing import retreat
from elasticjob_operator.sizing.room import describe_withdrawn
from elasticjob_operator.text import printable
from elasticjob_operator.times import format_time, parse_time

PROGRESS_SECONDS = 10.0
MOST_REASON, MOST_MESSAGE = 1024, 4096  # characters of a condition
MOST_SECONDS = 2**53  # that a status can hold

FORCED: Final = "DeletedByForce"  # an event that is told once the API server has deleted the pods

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event for the job."""

    reason: str
    message: str
    warning: bool = False


def list_true(events: Sequence[Event], *, has_undeleted: bool) -> tuple[Event, ...]:
    """Those that are true although the API server has refused deletions: a condition tells of these, and the next plan
    has the event again.
    """
    return tuple(event for event in events if not has_undeleted or event.reason != FORCED)


def with_condition(
    conditions: Sequence[api.Condition], type: str, truth: bool | None, reason: str, message: str, now: float
) -> list[api.Condition]:
    """The conditions with this one set (None: Unknown). Its transition time changes only with its status."""
    status: Truth = "Unknown" if truth is None else "True" if truth else "False"
    before = next((c for c in conditions if c.type == type), None)
    moved = before is None or before.status != status
    when = format_time(now) if moved or before is None else before.last_transition_time
    # Texts of the kubelet, a scheduler or a tenant may be part of it.
    reason, message = reason[:MOST_REASON], printable(message[:MOST_MESSAGE])
    fresh = api.Condition(type=type, status=status, reason=reason, message=message, last_transition_time=when)
    if before is None:
        return [*conditions, fresh]
    return [fresh if c.type == type else c for c in conditions]


def observe(status: api.Status, generation: int) -> api.Status:
    """The status as one of this generation of the spec, which all its conditions are about."""
    conditions = [
        c if c.observed_generation == generation else revise(c, observed_generation=generation)
        for c in status.conditions
    ]
    return revise(status, observed_generation=generation, conditions=conditions)


# --- steps and progress ----------------------------------------------------------------------------------


def is_training(decision: Decision) -> bool:
    """Whether a complete world is running: every member runs, has succeeded or is only suspected lost."""
    if decision.state not in (State.RUNNING, State.ENDING):
        return False
    return not decision.health(MemberHealth.STARTING, MemberHealth.STOPPING, MemberHealth.STOPPED, MemberHealth.LOST)


def read_reports(
    agents: Iterable[Agent], before: api.GoodputStatus, generation: int, *, saves: bool = True
) -> goodput.Reported:
    """What the members reported about their steps. `saves`: also what causes no write of its own."""
    found = list(agents)
    reports = [a.progress for a in found if a.progress is not None and a.progress.step is not None]
    now = [p.step for p in reports if p.generation == generation and p.step is not None]
    last = [p for p in reports if p.generation == before.step_generation]
    failures = (a.state.failure for a in found if a.state.failure is not None)
    stalled = [f.stalled_seconds or 0.0 for f in failures if f.generation == generation]
    waited = [p.checkpoint_seconds for p in reports if p.checkpoint_seconds is not None]
    sent = [(p.state_bytes, p.state_seconds or 0.0) for p in reports if p.state_bytes and p.generation == generation]
    state_bytes, state_seconds = max(sent) if sent and saves else (None, None)
    return goodput.Reported(
        first_step=min(now, default=None),
        last_step=max((p.step for p in last if p.step is not None), default=None),
        step_seconds=max((p.step_seconds for p in last if p.step_seconds is not None), default=None),
        checkpoint_seconds=round(max(waited), 3) if waited and saves else None,
        stalled_seconds=max(stalled, default=0.0),
        state_bytes=state_bytes,
        state_seconds=state_seconds,
    )


def update_progress(
    before: api.ProgressStatus | None, agents: Iterable[Agent], *, now: float, force: bool = False
) -> api.ProgressStatus | None:
    """The progress of the rank with the highest step, updated at most every ten seconds."""
    reports = [(a.progress, a.progress_since) for a in agents if a.progress is not None and a.progress.step is not None]
    if not reports:
        return before
    last = parse_time(before.last_update_time) if before else None
    if not force and last is not None and now - last < PROGRESS_SECONDS:
        return before
    best, since = max(reports, key=lambda one: (one[0].step or 0, -one[0].rank))
    step = best.step or 0
    if before is not None and before.step == step:
        return before
    total = best.total_steps
    remaining = None
    if total and best.step_seconds is not None:
        remaining = math.floor(min(max(0, total - step) * best.step_seconds, MOST_SECONDS))
    return api.ProgressStatus(
        step=step,
        total_steps=total,
        percentage=min(100, 100 * step // total) if total else None,
        step_seconds=None if best.step_seconds is None else round(best.step_seconds, 6),
        estimated_remaining_seconds=remaining,
        samples_per_second=find_samples_per_second(best),
        tokens_per_second=best.tokens_per_second,
        mfu=best.mfu,
        checkpoints=update_checkpoints(before.checkpoints if before else (), best.checkpoint_ages or {}, since),
        metrics=[api.Metric(name=k, value=v) for k, v in sorted(best.metrics.items()) if k],
        not_finite=sorted(filter(None, best.not_finite)),
        last_update_time=format_time(now),
        history=memory.add(before.history if before else None, step, best.metrics, now),
    )


def find_samples_per_second(told: wire.Progress) -> float | None:
    """What the script counts, or what a growing batch tells."""
    if told.samples_per_second is None and told.batch_size and told.batch_seconds:
        return round(min(told.batch_size / told.batch_seconds, MOST_SECONDS), 6)
    return told.samples_per_second


def update_checkpoints(
    before: Sequence[api.SavedStatus], ages: Mapping[str, float | None], since: float
) -> list[api.SavedStatus]:
    """The last checkpoint of each tier. `ages`: what the agent said of them at `since`; of the others it knows nothing.

    A file stays when the pods that have written it are gone. Their memory does not.
    """
    kept = {one.tier: one.time for one in before if one.tier != api.Tier.MEMORY}
    told = {
        tier.value: format_time(max(0.0, since - age)) for tier in api.Tier if (age := ages.get(tier.value)) is not None
    }
    return [api.SavedStatus(tier=tier, time=time) for tier, time in sorted((kept | told).items())]


# --- failures --------------------------------------------------------------------------------------------


def failure_status(failure: Failure, generation: int, now: float) -> api.FailureStatus:
    """The failure as stored in the status, where it outlives its pod."""
    return api.FailureStatus(
        time=format_time(now),
        pod=failure.pod,
        node=failure.node or None,
        generation=generation,
        rank=failure.rank,
        exit_code=failure.exit_code,
        signal=failure.signal or None,
        reason=failure.reason or None,
        message=describe_failure(failure),
        traceback=failure.traceback or None,
        log_tail=failure.log_tail or None,
    )


def describe_cost(progress: api.ProgressStatus | None) -> str:
    """What a save that failed costs, as far as reports tell it: the steps since the last one that was finished."""
    if progress is None or progress.step is None:
        return ""
    step = progress.step
    # Of copies and of an archive, the time is that at which they were finished, and not that of their state.
    own = [one for one in progress.checkpoints if one.tier in (api.Tier.FILE, api.Tier.MEMORY)]
    saved = max((at for one in own if (at := parse_time(one.time)) is not None), default=None)
    if saved is None:
        return f"; the last step that was reported is {step}"
    reports = [] if progress.history is None else progress.history.reports
    made = [one.step for one in reports if one.step <= step and (parse_time(one.time) or math.inf) <= saved]
    lost = step - max(made, default=0)
    return (
        f"; of the steps until the last report, about {lost} are made again: the last finished checkpoint is of"
        f" {format_time(saved)}"
    )


def diagnose(failure: Failure, others: Iterable[Failure], generation: int, now: float) -> api.DiagnosisStatus | None:
    """A hang in short; None for other failures."""
    if not failure.hung:
        return None
    is_known = failure.reason == names.RANK_HUNG
    waiting = sum(1 for one in others if one.hung and one.waits)
    pods = "1 other pod waits" if waiting == 1 else f"{waiting} other pods wait"
    rest = f"; {pods} in a collective" if waiting else ""
    return api.DiagnosisStatus(
        kind=failure.reason,
        rank=failure.rank if is_known else None,
        pod=failure.pod if is_known else None,
        node=(failure.node or None) if is_known else None,
        generation=generation,
        time=format_time(now),
        summary=(errortext.exception_of(failure.message) + rest)[:512],
    )


def describe_failure(failure: Failure) -> str:
    """Describe a failure in one line for conditions and events."""
    who = f"rank {failure.rank} ({failure.pod})" if failure.rank is not None else failure.pod
    if failure.init_container:
        who = f"init container {failure.init_container!r} of {who}"
    if failure.hung:
        alone = "" if failure.reason == names.RANK_HUNG else "; the rank that holds up the others is unknown"
        return f"{who} hung: {errortext.exception_of(failure.message)}{alone}"
    how = f" with exit code {failure.exit_code}" if failure.exit_code is not None else ""
    last = errortext.exception_of(failure.traceback) or errortext.exception_of(failure.message)
    what = f" [{failure.reason}]" if failure.reason not in ("", "Error", "WorkerFailed", last) else ""
    last = advise(last)
    ended = "ended" if failure.exit_code == 0 else "failed"
    altered = f"; {failure.altered}" if failure.altered else ""
    return f"{who} {ended}{how}{what}" + (f": {last}" if last else "") + altered


# --- conditions ------------------------------------------------------------------------------------------


def find_problem(
    pods: Iterable[Pod], *, world_size: int, wanted: int, room: api.CapacityStatus
) -> tuple[str, str] | None:
    """Why the job has fewer pods than it wants, the most informative reason first; None if it has all."""
    live = [p for p in pods if p.live]
    waiting = [p for p in live if p.waiting and p.waiting not in ("ContainerCreating", "PodInitializing")]
    waiting.sort(key=lambda p: (p.waiting not in PULL_REASONS, p.index))
    if waiting:
        pod = waiting[0]
        reason = "ImagePullFailed" if pod.waiting in PULL_REASONS else pod.waiting
        return reason, f"{pod.name}: {pod.waiting}: {pod.waiting_message}".rstrip(": ")
    stuck = [p for p in live if p.unschedulable is not None]
    if stuck:
        names = ", ".join(p.name for p in sorted(stuck, key=lambda p: p.index)[:5])
        return "Unschedulable", f"{names}: {stuck[0].unschedulable_message or 'no node has capacity'}"
    failed = [size for size in room.failed_sizes if world_size < size <= wanted]
    if failed:
        return "SizeFailed", retreat.describe(failed)
    if room.withdrawn:
        return "Unschedulable", ": ".join(filter(None, (describe_withdrawn(room), room.said)))
    if world_size < wanted:
        return "BelowWanted", f"{world_size} of {wanted} requested pods are training"
    return None


def phase_of(decision: Decision, generation: int) -> api.Phase:
    if decision.state in (State.RUNNING, State.ENDING):
        return api.Phase.RUNNING
    if generation == 0 or decision.state is State.WAITING:
        return api.Phase.PENDING
    return api.Phase.RESCALING if generation > 1 or decision.state is State.REGROUPING else api.Phase.PENDING


def running_condition(decision: Decision, generation: int, size: int) -> tuple[bool, str, str]:
    """(status, reason, message) of the Running condition."""
    if is_training(decision):
        return True, "WorldRunning", f"generation {generation} is training with {size} pods"
    reasons = {
        State.WAITING: "WaitingForPods",
        State.STARTING: "WorldStarting",
        State.REGROUPING: "Regrouping",
        State.ENDING: "MembersFinish",
        State.RUNNING: "WorldStarting",
    }
    message = decision.reason if decision.state is State.WAITING else ""
    return False, reasons[decision.state], message


# --- events ----------------------------------------------------------------------------------------------


def describe_changes(before: api.Status, after: api.Status, decision: Decision | None, now: float) -> tuple[Event, ...]:
    """The events for the transitions between two statuses."""
    found = moments.compare(moments.read(before), moments.read(after), now)
    if decision is not None and any(record.kind is Kind.FORMED for record in found):
        found = (*_find_lost(decision, after.rendezvous.generation, now), *found)
    return tuple(event for record in found if (event := event_of(record)) is not None)


def _find_lost(decision: Decision, generation: int, now: float) -> list[Record]:
    return [
        Record(
            Kind.LOST,
            now,
            generation,
            names.Cause.LOST,
            ranks=(j.member.rank,),
            message=f"{j.member.pod} (rank {j.member.rank}) is lost: {j.why}",
        )
        for j in decision.health(MemberHealth.LOST)
        if not j.leaving
    ]


def event_of(record: Record) -> Event | None:
    """The event for a record; None for records that are not reported as events."""
    match record.kind:
        case Kind.FORMED:
            change = f"from {record.before} to {record.size} pods" if record.before else f"with {record.size} pods"
            reason = "WorldChanged" if record.before else "WorldFormed"
            return Event(reason, f"generation {record.generation} {change}: {names.describe_cause(record.cause)}")
        case Kind.LOST:
            return Event("MemberLost", record.message, warning=True)
        case Kind.FAILED if record.message:
            hung = record.cause in (names.RANK_HUNG, names.WORLD_HUNG)
            return Event(record.cause if hung else "WorkerFailed", record.message, warning=True)
        case Kind.FORGIVEN if record.cause == CORRUPT:
            return Event(record.cause, record.message, warning=True)
        case Kind.SUSPENDED:
            return Event("Suspended", record.message or "Suspended")
        case Kind.COMPLETED:
            return Event("Completed", record.message or "Completed")
        case Kind.GAVE_UP:
            return Event("Failed", record.message or "Failed", warning=True)
        case Kind.RESUMED:
            return Event("Resumed", "the job continues from its last checkpoint")
        case Kind.STUCK:
            return Event("NoProgress", record.message, warning=True)
        case Kind.STRAGGLES:
            return Event("Straggler", f"{record.message} ({record.who})", warning=True)
        case Kind.DEGRADED | Kind.SICK:
            return Event(record.cause, record.message, warning=True)
        case _:
            return None
