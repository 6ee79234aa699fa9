"""Plans for jobs that are suspended, invalid, ending or finished. Pure."""

from __future__ import annotations

from dataclasses import replace

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.failures import nodes
from elasticjob_operator.history import goodput, rank_failures
from elasticjob_operator.history.records import Kind as What
from elasticjob_operator.history.records import Record
from elasticjob_operator.model import errortext, ownership
from elasticjob_operator.model.observe import NoRoom, Pod
from elasticjob_operator.model.revise import RendezvousFields, revise
from elasticjob_operator.plan import archiving, reporting, updating
from elasticjob_operator.plan.values import Child, Deletion, Kind, Plan, Seen, first
from elasticjob_operator.sizing import written
from elasticjob_operator.times import format_time, parse_time

_BY_USER = ("Suspended", "runPolicy.suspend is true; no pod is left")
_BY_QUEUE = ("Queued", "its queue has not admitted it (see the condition Admitted); no pod is left")


def wait_for_quota(seen: Seen, spec: api.Spec) -> Plan:
    """A job whose queue has not admitted it is suspended until its queue does; it asks for minReplicas."""
    return replace(suspend(seen, spec, _BY_QUEUE), asks=spec.min_replicas)


def leave_to_another(seen: Seen, spec: api.Spec) -> Plan:
    """A job of another manager. One that its queue sends on is suspended here until another cluster runs it."""
    if seen.quota is None or seen.quota.is_admitted or not seen.quota.is_sent_on:
        return give_back(seen, Plan(seen.job.status, f"managed by {spec.manager}"))
    return replace(suspend(seen, spec, _BY_USER if spec.run_policy.suspend else _BY_QUEUE), set_replicas=None)


_BY_KUBERNETES = ("foregroundDeletion", "orphan")  # finalizers of the garbage collector


def tell_deletion(seen: Seen) -> Plan:
    """A job that is being deleted, and that finalizers keep: nothing is done for it, and what it says stays true."""
    job, status = seen.job, seen.job.status
    made = Plan(status, "being deleted")
    is_others = job.spec is not None and not job.spec.is_ours
    if is_others or job.unread or status.finished or status.start_time is None:
        return made
    live, members = {p.uid for p in seen.pods if p.live}, status.rendezvous.members
    is_whole = len(live) >= status.ready_replicas and all(m.uid in live for m in members)
    trains = status.is_true("Running") and is_whole
    conditions = reporting.with_condition(
        status.conditions, "Running", trains, "Terminating", _describe_deletion(job.held_by), seen.now
    )
    after = revise(status, conditions=conditions, replicas=len(live))
    if trains:
        return replace(made, status=after)
    world = status.rendezvous
    reported = reporting.read_reports(seen.agents.values(), status.goodput, world.generation)
    happened = goodput.watch(status.goodput, running=False, formed=world.generation, now=seen.now, reported=reported)
    after = revise(
        goodput.update(after, happened),
        phase=status.phase if status.phase is api.Phase.SUSPENDED else api.Phase.PENDING,
        ready_replicas=0,
        rendezvous=revise(world, world_size=0, processes=0),
    )
    return replace(made, status=after)


def _describe_deletion(held_by: tuple[str, ...]) -> str:
    others = [finalizer for finalizer in held_by if finalizer not in _BY_KUBERNETES]
    if others:
        return f"the job is being deleted, and {ownership.describe_keepers(others, 'job')}"
    waits = " once its pods are gone" if "foregroundDeletion" in held_by else ""
    return f"the job is being deleted{waits}"


def give_back(seen: Seen, made: Plan) -> Plan:
    """The plan of a job that is otherwise left alone: the pods whose quota was taken back are deleted all the same.

    Else whoever may edit a job could keep its quota. Their scripts get the signal and the grace period of the pod.
    """
    quota = seen.quota
    if quota is None:
        return made
    told = {deletion.uid for deletion in made.delete}
    going = [p for p in seen.pods if p.deleting is None and p.holds_resources and not quota.covers(p.index)]
    more = (Deletion(p.name, p.uid, names.Cause.QUOTA) for p in going if p.uid not in told)
    return replace(made, delete=(*made.delete, *more))


def suspend(seen: Seen, spec: api.Spec, why: tuple[str, str] = _BY_USER) -> Plan:
    """Let the scripts save, then delete the pods. The generation is kept, so that a resumed job continues its count.

    `why` is what the condition `Suspended` says when no pod is left: reason and message.
    """
    status, now = seen.job.status, seen.now
    grace = float(spec.elastic_policy.graceful_shutdown_timeout_seconds)
    conditions = reporting.with_condition(status.conditions, "Running", False, why[0], "", now)
    degraded = status.condition("Degraded")
    if seen.job.problems:
        conditions = reporting.with_condition(conditions, "Degraded", True, "InvalidSpec", seen.job.problems_text, now)
    elif degraded and (why == _BY_USER or degraded.reason in ("InvalidSpec", NoRoom.REASON)):
        # Suspended, it wants nothing. In a queue, it goes on saying why its pods did not start: Kueue evicts for that.
        conditions = reporting.with_condition(conditions, "Degraded", False, why[0], "", now)
    status = updating.note(seen, spec, archiving.note(seen, spec, revise(status, conditions=conditions)))
    conditions = status.conditions
    since = next(c.last_transition_time for c in conditions if c.type == "Running")
    patience = (parse_time(since) or now) + grace
    pods = [p for p in seen.pods if p.deleting is None]
    waiting = {p.uid for p in pods if now < patience and _is_busy(seen, p)}
    after = _suspended_status(seen, status, conditions, why)
    stop = wire.Stop(reason=names.Cause.SUSPENDED, checkpoint=True, grace_seconds=grace)
    forced, force_at = _force(seen, spec)
    return Plan(
        status=after,
        reason=names.Cause.SUSPENDED,
        delete=(*forced, *(Deletion(p.name, p.uid, "the job is suspended") for p in pods if p.uid not in waiting)),
        directives={uid: stop for uid, a in seen.agents.items() if a.connected},
        announces=True,  # released agents exit like finished ones; the status must tell them apart
        events=(*reporting.describe_changes(status, after, None, now), *updating.find_events(seen.job.status, after)),
        set_replicas=None if spec.is_pooled else written.find_change(seen.job, spec.wanted),
        asks=0,
        wake_at=first(patience if waiting else None, force_at),
    )


def _force(seen: Seen, spec: api.Spec) -> tuple[tuple[Deletion, ...], float | None]:
    """Forced deletions of pods on dead nodes, and when the next one is due."""
    going = [p for p in seen.pods if p.deleting is not None]
    timeout = spec.elastic_policy.faulty_pod_timeout_seconds
    due, later = nodes.overdue_deletions(going, seen.nodes, (), timeout=timeout, now=seen.now)
    why = "its node or its processes do not respond"
    return tuple(Deletion(p.name, p.uid, why, force=True) for p in going if p.uid in due), later


def _is_busy(seen: Seen, pod: Pod) -> bool:
    """Whether its agent may have something to save. Sessions that wait for a world have their state in memory."""
    agent = seen.agents.get(pod.uid)
    if agent is None or not agent.connected or pod.terminal:
        return False
    phase = agent.state.phase
    waits = phase is wire.AgentPhase.READY and agent.state.in_process
    return waits or phase in (wire.AgentPhase.RUNNING, wire.AgentPhase.STOPPING)


def _suspended_status(
    seen: Seen, status: api.Status, conditions: list[api.Condition], why: tuple[str, str]
) -> api.Status:
    now, world = seen.now, status.rendezvous
    reported = reporting.read_reports(seen.agents.values(), status.goodput, world.generation)
    happened = goodput.watch(status.goodput, running=False, formed=world.generation, now=now, reported=reported)
    going = [revise(m, leaving=names.Cause.SUSPENDED) for m in world.members]
    rest: RendezvousFields = {"world_size": 0, "processes": 0, "members": going}
    if not seen.pods:
        # Only now is nobody training. Until then a resumed job needs to know its old members.
        rest = {**rest, "members": [], "store": None, "succeeded": []}
        conditions = reporting.with_condition(conditions, "Suspended", True, *why, now)
        happened = (*happened, Record(What.EMPTIED, now, world.generation))
    return revise(
        goodput.update(status, happened),
        phase=api.Phase.SUSPENDED,
        conditions=conditions,
        rendezvous=revise(world, **rest),
        replicas=sum(1 for p in seen.pods if p.live),
        ready_replicas=0,
        selector=names.selector(seen.job.name),
        observed_generation=seen.job.generation,
        capacity=None,
    )


def refuse(seen: Seen, reason: str, message: str) -> Plan:
    """Fail an invalid job that has not started. A running job continues with its old spec: a typo must not end it."""
    status = seen.job.status
    if status.start_time is None:
        return end(seen, status, api.Phase.FAILED, reason, message)
    conditions = reporting.with_condition(status.conditions, "Degraded", True, reason, message, seen.now)
    after = revise(status, conditions=conditions, observed_generation=seen.job.generation)
    return Plan(after, reason, events=reporting.describe_changes(status, after, None, seen.now))


def hold(seen: Seen) -> Plan:
    """Leave a job untouched if status fields that decisions depend on cannot be parsed.

    The job may have a running world. To recover, suspend it: once the pods are gone nothing trains, and starting with a
    new count of generations is safe.
    """
    job, status, spec = seen.job, seen.job.status, seen.job.spec
    message = (
        f"status.{', status.'.join(job.unread)} cannot be parsed, so the operator leaves the job untouched: run the "
        "operator version that wrote it, or suspend and resume the job, which resets its status"
    )
    conditions = reporting.with_condition(status.conditions, "Degraded", True, "StatusNotUnderstood", message, seen.now)
    held = revise(status, conditions=conditions, observed_generation=job.generation)
    events = () if "conditions" in job.unread else reporting.describe_changes(status, held, None, seen.now)
    stay = Plan(held, "its status cannot be parsed", events=events, keep=job.unread)
    if spec is None or not spec.run_policy.suspend:
        return stay
    leave = suspend(seen, spec)
    if not seen.pods:
        return leave
    return replace(stay, delete=leave.delete, directives=leave.directives, wake_at=leave.wake_at)


def end(seen: Seen, status: api.Status, phase: api.Phase, reason: str, message: str) -> Plan:
    """Finish the job. `after_end` cleans up in later passes."""
    now = seen.now
    type = "Complete" if phase is api.Phase.COMPLETE else "Failed"
    conditions = reporting.with_condition(status.conditions, "Running", False, reason, "", now)
    conditions = reporting.with_condition(conditions, type, True, reason, message, now)
    if status.condition("Degraded"):  # it lacks nothing any more
        conditions = reporting.with_condition(conditions, "Degraded", False, reason, "", now)
    formed = status.rendezvous.generation
    reported = reporting.read_reports(seen.agents.values(), status.goodput, formed)
    happened = goodput.watch(status.goodput, running=False, formed=formed, now=now, reported=reported)
    after = revise(
        goodput.update(status, happened),
        phase=phase,
        conditions=conditions,
        completion_time=format_time(now),
        progress=reporting.update_progress(status.progress, seen.agents.values(), now=now, force=True),
        ready_replicas=0,
        observed_generation=seen.job.generation,
        selector=names.selector(seen.job.name),
        capacity=None,
    )
    return Plan(
        status=after,
        reason=reason,
        directives=_final_stops(seen, phase is api.Phase.COMPLETE),
        events=reporting.describe_changes(seen.job.status, after, None, now),
        announces=True,  # release agents only after the end is recorded
        wake_at=now,
    )


def _final_stops(seen: Seen, ok: bool) -> dict[str, wire.Directive]:
    reason = "completed" if ok else "failed"
    return {uid: wire.Stop(reason=reason, ok=ok) for uid, a in seen.agents.items() if a.connected}


LINGER_SECONDS = 30.0  # agents that received the final stop exit by themselves


def after_end(seen: Seen) -> Plan:
    """Plan a finished job: delete pods according to cleanPodPolicy, and the job itself when its TTL has passed.

    Pods first get time to exit by themselves: pods that exit keep their logs, deleted pods do not.
    """
    job, status, now = seen.job, seen.job.status, seen.now
    spec = job.spec
    clean = spec.run_policy.clean_pod_policy if spec else api.CleanPodPolicy.RUNNING
    ttl = spec.run_policy.ttl_seconds_after_finished if spec else None
    ended = parse_time(status.completion_time) or now
    complete = status.is_true("Complete")
    present = [p for p in seen.pods if p.deleting is None]
    linger = ended + LINGER_SECONDS
    ending = {p.uid for p in present if now < linger and _ends_by_itself(p, seen)}
    running = [p for p in present if p.holds_resources and p.uid not in ending]
    doomed: list[Pod] = []
    if clean is api.CleanPodPolicy.ALL:
        doomed = [p for p in present if p.uid not in ending]
    elif clean is api.CleanPodPolicy.RUNNING:
        doomed = running
    forced, force_at = _force(seen, spec) if spec else ((), None)
    if names.LABEL_ORIGIN in job.labels:
        ttl = None  # whoever has sent the job here copies its end, and deletes it
    expired = ttl is not None and now >= ended + ttl
    live = sum(1 for p in present if not p.terminal)
    useless = (Kind.DISRUPTION_BUDGET, Kind.AUTOSCALER)  # to a job that runs no more
    return Plan(
        status=revise(
            status,
            replicas=live,
            last_failure=_with_log(status.last_failure, seen) if status.last_failure else None,
            failures=rank_failures.merge((), [_with_log(one, seen) for one in status.failures]),
        ),
        reason="finished",
        delete=(*forced, *(Deletion(p.name, p.uid, "the job has finished") for p in doomed)),
        remove=tuple(Child(Kind(kind), name) for kind, name, _ in sorted(seen.children) if kind in useless),
        directives=_final_stops(seen, complete),
        delete_job=expired,
        wake_at=first(linger if ending else None, force_at, ended + ttl if ttl is not None and not expired else None),
    )


def _ends_by_itself(pod: Pod, seen: Seen) -> bool:
    """Whether an agent in this pod will end it when the job ends."""
    status = seen.job.status
    has_succeeded = status.is_true("Complete") and any(m.uid == pod.uid for m in status.rendezvous.members)
    return not pod.terminal and (pod.uid in seen.agents or has_succeeded)


_LOGGED = ("Error", "OOMKilled")  # for these reasons the termination message is the end of the log


def _with_log(failure: api.FailureStatus, seen: Seen) -> api.FailureStatus:
    """The failure with the end of its pod's log, which is available once the pod has terminated."""
    if failure.log_tail:
        return failure
    ended = next((p.exit for p in seen.pods if p.name == failure.pod and p.terminal), None)
    if ended is None or not ended.message or ended.reason not in _LOGGED:
        return failure
    log = errortext.split(ended.message).rest if failure.traceback else ended.message
    return revise(failure, log_tail=errortext.tail(log) or None)
