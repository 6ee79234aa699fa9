"""`plan(seen, config)`: what to do about one job now. Pure; every watch event leads here.

The ladder reads from the top: jobs that are none of our business, finished ones, those that can never run, suspended
ones, deadlines, failures, success; then the normal case: which pods, which world, which status. What a plan says is
safe to carry out twice, and after it is carried out the next plan is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elasticjob_operator import (
    account,
    api,
    budget,
    capacity,
    children,
    directives,
    ending,
    fleet,
    foreign,
    membership,
    names,
    nodes,
    policy,
    reading,
    report,
    restless,
    setbacks,
    silence,
)
from elasticjob_operator.fleet import Fleet
from elasticjob_operator.membership import Decision, State
from elasticjob_operator.observe import format_time, parse_time, resolve_nproc
from elasticjob_operator.records import Child, Config, Deletion, Kind, NewPod, Plan, Seen, first
from elasticjob_operator.standing import Judged, Situation, Standing, Worker, judge

__all__ = ["Child", "Config", "Deletion", "Kind", "NewPod", "Plan", "Seen", "plan"]


def plan(seen: Seen, config: Config = Config()) -> Plan:
    """What to do now, and what to tell."""
    served = () if seen.job.deleting else {p.uid for p in seen.pods}
    released = directives.release({**seen.agents, **seen.leftover}, served)
    made = _plan(seen, config)
    if made.status is not seen.job.status and not seen.job.status.finished:
        made = _tell_notices(seen, made)
    return replace(made, directives={**made.directives, **released}) if released else made


def _plan(seen: Seen, config: Config) -> Plan:
    job, status = seen.job, seen.job.status
    if job.deleting:
        return Plan(status, "being deleted")
    if status.finished:
        return ending.after_end(seen)
    if job.unread:
        return ending.hold(seen)
    if job.spec is None:
        return ending.refuse(seen, "InvalidSpec", job.complaint)
    if job.spec.run_policy.managed_by not in (None, names.MANAGED_BY):
        return Plan(status, f"managed by {job.spec.run_policy.managed_by}")
    if job.spec.run_policy.suspend:
        return ending.suspend(seen, job.spec)
    if seen.trouble and seen.trouble[0] == "InvalidTemplate" and status.rendezvous.generation == 0:
        return ending.end(seen, status, api.Phase.FAILED, *seen.trouble)
    status = _started(seen, job.spec)
    deadline = policy.check_deadlines(job.spec, status, seen.now)
    if deadline.reason:
        return ending.end(seen, status, api.Phase.FAILED, deadline.reason, deadline.message)
    made = _run(seen, config, job.spec, status)
    return replace(made, wake_at=first(made.wake_at, deadline.at))


def _tell_notices(seen: Seen, made: Plan) -> Plan:
    """The condition `Warning` says what keeps nothing from running, as long as it is so."""
    before, notices = made.status.condition("Warning"), seen.job.notices
    if not notices and (before is None or before.status == "False"):
        return made
    reason = notices[0].reason if notices else "NothingToTell"
    message = "; ".join(notice.message for notice in notices)[:4096]
    conditions = report.with_condition(made.status.conditions, "Warning", bool(notices), reason, message, seen.now)
    is_new = before is None or before.message != message
    events = [report.Event(notice.reason, notice.message, warning=True) for notice in notices] if is_new else []
    return replace(
        made, status=made.status.model_copy(update={"conditions": conditions}), events=(*made.events, *events)
    )


def _started(seen: Seen, spec: api.Spec) -> api.Status:
    """The status of a job that runs: stamped when it starts, and again when it is resumed."""
    status = seen.job.status
    changes: dict[str, Any] = {
        "observed_generation": seen.job.generation,
        "selector": names.selector(seen.job.name),
        "nproc_per_node": resolve_nproc(spec),
    }
    if status.is_fresh or status.in_force is None:
        changes["in_force"] = reading.in_force(spec)
    if status.is_fresh:
        changes["start_time"] = format_time(seen.now)
        changes["template_hash"] = spec.template_hash
    if status.is_true("Suspended"):
        changes["conditions"] = report.with_condition(status.conditions, "Suspended", False, "Resumed", "", seen.now)
    if seen.job.generation != status.observed_generation:
        changes["capacity"] = None  # the user has changed something: try at once
        changes["restarts"] = status.restarts.model_copy(update={"backoff": None})
    return status.model_copy(update=changes)


def _run(seen: Seen, config: Config, spec: api.Spec, status: api.Status) -> Plan:
    restarts = budget.refund(status.restarts, seen.step)
    restarts = restarts.model_copy(update={"backoff": setbacks.forget(restarts.backoff, seen.now)})
    status = status.model_copy(update={"restarts": restarts})
    pods = fleet.choose_pods(seen, spec, status)
    status = status.model_copy(update={"rendezvous": _mark_leaving(seen, status.rendezvous, pods)})
    situation = _situation(seen, config, spec, status, pods)
    is_foreign = spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR
    judged = foreign.judge(seen, status) if is_foreign else judge(situation)
    ended = _check_success(spec, status, judged)
    if ended:
        return ending.end(seen, status, api.Phase.COMPLETE, "Completed", ended)
    booked = account.book(seen, spec, status, judged, pods.missing)
    status = booked.status
    if booked.reason:
        return ending.end(seen, status, api.Phase.FAILED, booked.reason, booked.message)
    waiting = status.restarts.backoff
    hold = setbacks.wait_until(waiting, seen.now)
    held = setbacks.count_held(waiting, pods.missing, seen.now)
    pods = replace(pods, missing=pods.missing - held, wake_at=first(pods.wake_at, hold or None))
    if is_foreign:
        decision = foreign.decide(seen, spec, status)
    else:
        whole = hold if setbacks.is_whole(waiting, seen.now) else 0.0
        situation = replace(
            situation,
            hold_until=max(restless.hold_until(status.restarts, seen.now), whole),
            missing=pods.missing,
            restarts=status.restarts.total,
        )
        decision = membership.decide(situation)
    return _write(seen, config, spec, status, pods, decision)


def _mark_leaving(seen: Seen, world: api.RendezvousStatus, pods: Fleet) -> api.RendezvousStatus:
    """Members that were to go are remembered as such when their pods are gone: that is no loss."""
    live = {p.uid: p for p in seen.pods if not p.terminal}
    members = [
        m.model_copy(update={"leaving": pods.leaving(live[m.uid]) or None}) if m.uid in live else m
        for m in world.members
    ]
    return world.model_copy(update={"members": members})


def _situation(seen: Seen, config: Config, spec: api.Spec, status: api.Status, pods: Fleet) -> Situation:
    workers = []
    for pod in seen.pods:
        gone = pods.departing.get(pod.uid)
        hold = capacity.held_until(pod, status, config.stable_seconds)
        if not capacity.is_worth_growing(status, status.rendezvous.world_size, spec.wanted):
            hold = max(hold, seen.now + 60)
        leaving, patient = pods.leaving(pod), bool(gone and gone.patient)
        workers.append(Worker(pod, seen.agents.get(pod.uid), leaving, patient=patient, held_until=hold))
    return Situation(
        world=status.rendezvous,
        workers=tuple(workers),
        sizes=fleet.sizes_of(spec),
        now=seen.now,
        hub_started=seen.hub_started,
        missing=pods.missing,
        grace=float(spec.elastic_policy.graceful_shutdown_timeout_seconds),
        broken_since=_broken_since(status),
        settings=config.membership,
    )


def _broken_since(status: api.Status) -> float | None:
    """Since when no whole world runs; None where one does."""
    running = status.condition("Running")
    if running is None or not status.goodput.since:
        return parse_time(status.rendezvous.formed_time)
    return None if running.status == "True" else parse_time(running.last_transition_time)


def _check_success(spec: api.Spec, status: api.Status, judged: Sequence[Judged]) -> str:
    """Why the job is complete; "" where it is not."""
    succeeded = [j for j in judged if j.standing is Standing.SUCCEEDED]
    if spec.success_policy is api.SuccessPolicy.RANK0 and any(j.member.rank == 0 for j in succeeded):
        return "rank 0 ended well"
    if not succeeded or len(succeeded) < len(judged):
        return ""
    return f"all {len(judged) + len(status.rendezvous.succeeded)} members ended well"


# --- what is written -------------------------------------------------------------------------------------


def _write(seen: Seen, config: Config, spec: api.Spec, status: api.Status, pods: Fleet, decision: Decision) -> Plan:
    status = status.model_copy(update={"rendezvous": _next_rendezvous(seen, status, decision)})
    status = _report(seen, spec, status, pods, decision)
    silent = first(_find_agentless(seen, spec, status).at, silence.find_no_progress(status, seen.now).at)
    calm = restless.find_restless(status, seen.now).at
    existing = {(kind, name): digest for kind, name, digest in seen.children}
    create = _new_pods(seen, spec, status, pods)
    # Those that are made now are counted already: one write instead of two.
    status = status.model_copy(update={"replicas": status.replicas + len(create)})
    wanted = children.wanted_children(seen.job, spec, config)
    return Plan(
        status=status,
        reason=decision.reason,
        create=create,
        # Where a job is deleted its pods go after it, but what the watches tell of both may come in any order.
        confirm=bool(create) and seen.job.status.replicas > 0,
        delete=fleet.plan_deletions(
            seen, status, pods, decision.judged if decision.state is not State.REGROUPING else ()
        ),
        ensure=tuple(c for c in wanted if children.needs_write(c, existing)),
        remove=children.unwanted_children(wanted, existing, seen.job),
        directives={**decision.directives, **fleet.dismiss(seen, status, pods)},
        events=report.tell_changes(seen.job.status, status, decision),
        announces=decision.world is not None,
        set_replicas=None if seen.job.has_replicas else spec.wanted,
        wake_at=first(decision.wake_at, pods.wake_at, _progress_due(seen, status), silent, calm),
    )


def _next_rendezvous(seen: Seen, status: api.Status, decision: Decision) -> api.RendezvousStatus:
    before = status.rendezvous
    world = decision.world or before
    if decision.world is not None:
        ended = [m.uid for m in fleet.find_succeeded(seen, before)]
        world = world.model_copy(update={"succeeded": [*before.succeeded, *ended]})
    size = 0 if decision.state in (State.WAITING, State.REGROUPING) else len(world.members)
    processes = sum(m.nproc for m in world.members) if size else 0
    return world.model_copy(update={"world_size": size, "processes": processes})


def _new_pods(seen: Seen, spec: api.Spec, status: api.Status, pods: Fleet) -> tuple[NewPod, ...]:
    avoid = nodes.nodes_to_avoid(status.node_faults, seen.now)
    # Torch's own rendezvous knows pods by their index: the first one hosts the store.
    limit = None if spec.rendezvous.backend is api.RendezvousBackend.OPERATOR else spec.wanted
    return tuple(NewPod(i, avoid) for i in policy.free_indices(seen.pods, pods.missing, limit=limit))


def _progress_due(seen: Seen, status: api.Status) -> float | None:
    """When a report that was held back is written."""
    if status.progress is None or seen.step in (None, status.progress.step):
        return None
    last = parse_time(status.progress.last_update_time)
    return None if last is None else last + report.PROGRESS_SECONDS


def _report(seen: Seen, spec: api.Spec, status: api.Status, pods: Fleet, decision: Decision) -> api.Status:
    now, world = seen.now, status.rendezvous
    training = report.is_training(decision)
    members = {m.uid for m in world.members}
    reports = [a for uid, a in seen.agents.items() if uid in members]
    goodput = report.update_goodput(
        status.goodput,
        running=training,
        formed=world.generation,
        now=now,
        stepped=report.has_stepped(reports, world.generation),
        stalled=report.stalled_seconds(reports, world.generation),
    )
    room = pods.capacity
    if training and len(world.members) >= fleet.sizes_of(spec).legal(spec.wanted):
        room = api.CapacityStatus()
    running, reason, message = report.running_condition(decision, world.generation, len(world.members))
    failing = None if running else setbacks.tell(status)
    if failing:
        reason, message = failing
    conditions = report.with_condition(status.conditions, "Running", running, reason, message, now)
    trouble = _find_trouble(seen, spec, status, room)
    if trouble and decision.state is not State.ENDING:
        conditions = report.with_condition(conditions, "Degraded", True, *trouble, now)
    elif status.condition("Degraded"):
        conditions = report.with_condition(conditions, "Degraded", False, "AllWanted", "", now)
    conditions = _note_progress(status.model_copy(update={"goodput": goodput, "conditions": conditions}), now)
    return status.model_copy(
        update={
            "phase": report.phase_of(decision, world.generation),
            "goodput": goodput,
            "conditions": conditions,
            "capacity": room if room != api.CapacityStatus() else None,
            "replicas": sum(1 for p in seen.pods if p.live),
            "ready_replicas": len(world.members) if training else 0,
            "progress": report.update_progress(status.progress, reports, now=now),
        }
    )


def _note_progress(status: api.Status, now: float) -> list[api.Condition]:
    """The conditions with NoProgress where it says something: True, or Unknown where the script reports nothing."""
    found = silence.find_no_progress(status, now)
    if found.reason:
        truth = True if found.reason == "NoStep" else None
        return report.with_condition(status.conditions, "NoProgress", truth, found.reason, found.message, now)
    if status.condition("NoProgress"):
        return report.with_condition(status.conditions, "NoProgress", False, "NothingToTell", "", now)
    return status.conditions


def _find_agentless(seen: Seen, spec: api.Spec, status: api.Status) -> silence.Finding:
    if spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR:
        return silence.Finding()
    return silence.find_agentless(seen.pods, seen.agents.keys(), status, hub_started=seen.hub_started, now=seen.now)


def _find_trouble(seen: Seen, spec: api.Spec, status: api.Status, room: api.CapacityStatus) -> tuple[str, str] | None:
    """What keeps the job from having all it wants: what the user has to mend comes first, and all of it."""
    if seen.trouble:
        reason, message = seen.trouble
        return reason, "; ".join(filter(None, (message, seen.job.complaint)))[:4096]
    if seen.job.problems:
        return "InvalidSpec", seen.job.complaint
    agentless = _find_agentless(seen, spec, status)
    if agentless.reason:
        return agentless.reason, agentless.message
    found = report.find_trouble(
        seen.pods, world_size=status.rendezvous.world_size, wanted=spec.wanted, withdrawn=room.withdrawn
    )
    left = restless.find_restless(status, seen.now)
    if left.reason and (found is None or found[0] == "BelowWanted"):
        return left.reason, left.message
    if found is not None and found[0] == "BelowWanted":
        return setbacks.tell(status) or found
    if found is None and status.template_hash != spec.template_hash:
        return "TemplateChanged", "spec.template has changed: suspend and resume the job to move all its pods to it"
    return found
