"""`plan(seen, config)`: what to do for one job now. Pure; every watch event leads here.

Read the ladder from the top: jobs of other managers, finished jobs, invalid jobs, suspended jobs, deadlines, failures,
success; then the normal case: which pods, which world, which status. A plan is idempotent: carrying it out twice is
safe, and afterwards the next plan is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import names, podtemplate, wire
from elasticjob_operator.failures import (
    backoff_rules,
    budget,
    classify,
    health_watch,
    held_pods,
    incidents,
    silence,
    stragglers,
)
from elasticjob_operator.history import faulty_nodes, worlds
from elasticjob_operator.membership import decide, directives, probing
from elasticjob_operator.membership.decide import Decision, State
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, Worker, judge
from elasticjob_operator.model import queueing, reading
from elasticjob_operator.model.observe import resolve_nproc
from elasticjob_operator.model.reading import Notice
from elasticjob_operator.model.revise import StatusFields, revise
from elasticjob_operator.plan import (
    accounting,
    beginning,
    children,
    ending,
    flapping,
    native_rendezvous,
    next_status,
    policy,
    reporting,
    selection,
    summary,
    updating,
)
from elasticjob_operator.plan.selection import PodSelection
from elasticjob_operator.plan.values import Child, Config, Deletion, Kind, NewPod, Plan, Seen, first
from elasticjob_operator.sizing import growth, legal, retreat, written
from elasticjob_operator.templates import taking
from elasticjob_operator.times import format_time, parse_time

__all__ = ["Child", "Config", "Deletion", "Kind", "NewPod", "Plan", "Seen", "plan"]

_KEEPS_PODS: Final = ("DeleteForbidden", "WriteFailed")  # reasons for which pods stay that should go


def plan(seen: Seen, config: Config = Config()) -> Plan:
    """The actions for one job, including warnings and events."""
    served = () if seen.job.deleting else {p.uid for p in seen.pods}
    released = directives.release({**seen.agents, **seen.leftover}, served)
    made = _plan(seen, config)
    made = replace(made, events=(*made.events, *_tell_forced(seen, made)))
    if made.status is not seen.job.status:
        made = _report_quota(seen, _warn(seen, config, made))
        status, generation = made.status, seen.job.generation
        # Of a job that has ended, no change of the spec matters any more, unless it begins anew.
        if not made.status.finished or not seen.job.status.finished:
            conditions = summary.summarize(status, seen.now)
            status = revise(status, conditions=conditions, written_replicas=seen.job.own_replicas)
            generation = status.observed_generation
        elif seen.job.is_corrected:  # it waits to begin anew, and would take the change for one that it knows
            generation = seen.job.status.observed_generation
        status = reporting.observe(status, generation)
        made = replace(made, status=accounting.remember_counted(seen.job.status, status))
    return replace(made, directives={**made.directives, **released}) if released else made


def _plan(seen: Seen, config: Config) -> Plan:
    job, status = seen.job, seen.job.status
    if job.deleting:
        return ending.give_back(seen, ending.tell_deletion(seen))
    if status.finished:
        return beginning.begin_anew(seen) if beginning.may_begin_anew(seen) else ending.after_end(seen)
    if job.unread:
        return ending.give_back(seen, ending.hold(seen))
    if job.no_room is not None:
        return ending.give_back(seen, beginning.wait_for_room(seen, job.no_room))
    if job.awaited is not None:
        return ending.give_back(seen, beginning.take_template(seen, job.awaited))
    if job.spec is None:
        return ending.give_back(seen, ending.refuse(seen, "InvalidSpec", job.problems_text))
    if not job.spec.is_ours:
        return ending.leave_to_another(seen, job.spec)
    if job.spec.run_policy.suspend:
        return ending.suspend(seen, job.spec)
    if (origin := beginning.find_awaited_origin(job)) is not None:
        return ending.give_back(seen, beginning.take_origin(seen, origin))
    if seen.quota is not None and not seen.quota.is_admitted:
        return ending.wait_for_quota(seen, job.spec)
    if seen.problem and seen.problem[0] == "InvalidTemplate" and status.rendezvous.generation == 0:
        return ending.end(seen, status, api.Phase.FAILED, *seen.problem)
    status = _started(seen, job.spec)
    deadline = policy.check_deadlines(job.spec, status, seen.now)
    if deadline.reason:
        cause = status.condition("Degraded")
        why = f"; {cause.reason}: {cause.message}" if cause and cause.status == "True" and cause.message else ""
        return ending.end(seen, status, api.Phase.FAILED, deadline.reason, deadline.message + why)
    made = _run(seen, config, job.spec, status)
    return replace(made, wake_at=first(made.wake_at, deadline.at))


def _tell_forced(seen: Seen, made: Plan) -> tuple[reporting.Event, ...]:
    uids = {gone.uid for gone in made.delete if gone.force}
    forced = sorted((pod for pod in seen.pods if pod.uid in uids), key=lambda pod: pod.index)
    if not forced:
        return ()
    first_ones = ", ".join(f"{pod.name} on node {pod.node}" for pod in forced[:5])
    more = f" and {len(forced) - 5} more" if len(forced) > 5 else ""
    message = (
        f"{first_ones}{more}: its node or its processes do not respond, so the pod is deleted by force; a process that "
        "waits for a disk may go on there and hold its devices: look at the node before you trust it again"
    )
    return (reporting.Event(reporting.FORCED, message, warning=True),)


def _warn(seen: Seen, config: Config, made: Plan) -> Plan:
    """Set the condition `Warning` while there are warnings that do not stop the job."""
    held, held_at = held_pods.find_held(seen.pods, seen.now)
    before = made.status.condition("Warning")
    made = replace(made, wake_at=first(made.wake_at, held_at, _find_look(seen, before)))
    unasked = queueing.find_unasked(seen.job, has_kueue=config.has_kueue)
    found = (*_find_deadlines(seen), *_find_untold(seen, made.status), *_find_unwatched(seen))
    notices = (*seen.job.notices, *unasked, *held, *found)
    if not notices and (before is None or before.status == "False"):
        return made
    reason = notices[0].reason if notices else "NothingToTell"
    message = "; ".join(notice.message for notice in notices)[:4096]
    conditions = reporting.with_condition(made.status.conditions, "Warning", bool(notices), reason, message, seen.now)
    is_new = before is None or before.message != message
    events = [reporting.Event(notice.reason, notice.message, warning=True) for notice in notices] if is_new else []
    return replace(made, status=revise(made.status, conditions=conditions), events=(*made.events, *events))


def _find_look(seen: Seen, warning: api.Condition | None) -> float | None:
    """When to look again whether there is room for a change that waits: later and later."""
    if seen.job.late is None:
        return None
    since = parse_time(warning.last_transition_time) if warning is not None and warning.status == "True" else None
    return seen.now + taking.find_pause(0.0 if since is None else seen.now - since)


def _find_untold(seen: Seen, status: api.Status) -> tuple[Notice, ...]:
    """What keeps the pods of a job that runs no more, for which `Degraded` does not tell it."""
    if seen.problem is None or seen.problem[0] not in _KEEPS_PODS:
        return ()
    degraded = status.condition("Degraded")
    is_told = degraded is not None and degraded.status == "True" and degraded.reason == seen.problem[0]
    return () if is_told else (Notice(*seen.problem),)


def _find_deadlines(seen: Seen) -> tuple[Notice, ...]:
    """A deadline that others have given to pods of the job."""
    spec = seen.job.spec
    if spec is None:
        return ()
    found = [p for p in seen.pods if p.live and p.template_hash == spec.template_hash]
    given = [p for p in found if classify.has_foreign_deadline(p, spec.template)]
    if not given:
        return ()
    cut = min(given, key=lambda p: p.index)
    told = classify.tell_deadline(cut, spec.template, "will end")
    return (Notice("PodDeadline", f"{cut.name}: {told}. The pod is then replaced, which is not charged"),)


def _find_unwatched(seen: Seen) -> tuple[Notice, ...]:
    """Pods whose output nobody looks at for the rules of the job."""
    spec = seen.job.spec
    wanted = api.digest_patterns(api.list_patterns(spec.health.rules or ())) if spec is not None else ""
    if not wanted:
        return ()
    running = [a for a in seen.agents.values() if a.connected and a.state.phase is wire.AgentPhase.RUNNING]
    found = sorted(agent.pod for agent in running if agent.state.watches != wanted)
    if not found:
        return ()
    who = f"{found[0]} and {len(found) - 1} more" if len(found) > 1 else found[0]
    message = (
        f"health.rules: the output of {who} is not looked at for all expressions of the rules: expressions hold for "
        "pods that are created after they were written, with a runtime that knows them and starts the workers itself. "
        "Suspend and resume the job, or use the runtime of the operator's version"
    )
    return (Notice("RulesNotWatched", message),)


def _report_quota(seen: Seen, made: Plan) -> Plan:
    """The condition `Admitted` says what the queue of the job says; a job that leaves its queue keeps the last word."""
    quota = seen.quota
    if quota is None or made.status.finished:
        return made
    before = made.status.condition("Admitted")
    conditions = reporting.with_condition(
        made.status.conditions, "Admitted", quota.is_admitted, quota.reason, quota.message, seen.now
    )
    is_new = before is None or before.reason != quota.reason
    warns = quota.reason not in ("Admitted", "Pending", "Evicted")
    events = (reporting.Event(quota.reason, quota.message[:1024], warning=warns),) if is_new else ()
    return replace(made, status=revise(made.status, conditions=conditions), events=(*made.events, *events))


def _started(seen: Seen, spec: api.Spec) -> api.Status:
    """The status of a running job, with the start time set when it starts and when it is resumed."""
    status = seen.job.status
    restarts = status.restarts
    changes: StatusFields = {
        "observed_generation": seen.job.generation,
        "selector": names.selector(seen.job.name),
        "nproc_per_node": _count_processes(spec, status),
    }
    if status.is_fresh or status.in_force is None:
        changes["in_force"] = reading.in_force(spec)
    if status.is_fresh:
        changes["start_time"] = format_time(seen.now)
        changes["template_hash"] = spec.template_hash
    if status.is_true("Suspended"):
        changes["conditions"] = reporting.with_condition(status.conditions, "Suspended", False, "Resumed", "", seen.now)
        changes["incidents"] = incidents.close_all(status.incidents)
        restarts = budget.begin_anew(restarts) if incidents.has_suspended(status) else restarts
    if seen.job.generation != status.observed_generation and not seen.job.is_sized_by_pool:
        changes["capacity"] = _keep_failed_sizes(spec, status)
        is_new = status.template_hash != spec.template_hash
        restarts = budget.forget_error(restarts) if is_new else restarts
        restarts = revise(restarts, backoff=backoff_rules.keep(restarts.backoff, spec))
    changes["restarts"] = restarts
    return revise(status, **changes)


def _count_processes(spec: api.Spec, status: api.Status) -> int:
    """Of a pod: where only the pods know, those of the members tell."""
    members = status.rendezvous.members if podtemplate.leaves_nproc_to_pods(spec.nproc_per_node, spec.template) else ()
    return max((m.nproc for m in members), default=resolve_nproc(spec))


def _keep_failed_sizes(spec: api.Spec, status: api.Status) -> api.CapacityStatus | None:
    if status.is_fresh:
        return None
    before = status.scaling.wanted if status.scaling else None  # it is told where a size that failed limits it
    is_asked = spec.wanted != before and not spec.elastic_policy.metrics
    return retreat.keep(status.capacity, backoff_rules.digest_cause(spec), spec.wanted if is_asked else None)


def _run(seen: Seen, config: Config, spec: api.Spec, status: api.Status) -> Plan:
    restarts = budget.refund(status.restarts, seen.step)
    restarts = revise(restarts, backoff=backoff_rules.forget(restarts.backoff, seen.now))
    status = revise(status, restarts=restarts)
    status = revise(status, stragglers=_find_stragglers(seen, spec, status))
    status = incidents.forget_passed(status, seen.step_of(status.rendezvous.generation))
    status = updating.follow(seen, spec, status)
    pods = selection.choose_pods(seen, spec, status)
    status = revise(status, rendezvous=_mark_leaving(seen, status.rendezvous, pods))
    situation = _situation(seen, config, spec, status, pods)
    is_native = spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR
    verdicts = native_rendezvous.judge(seen, status) if is_native else judge(situation)
    ended = _check_success(spec, status, verdicts)
    if ended:
        return ending.end(seen, status, api.Phase.COMPLETE, "Completed", ended)
    booked = accounting.book(seen, spec, status, situation, verdicts)
    if booked.reason:
        return ending.end(seen, booked.status, api.Phase.FAILED, booked.reason, booked.message)
    found = _note_incidents(seen, spec, booked.status)
    if ended := incidents.find_end(spec, found):
        return ending.end(seen, found, api.Phase.FAILED, "HealthRule", ended)
    is_leaving = found.capacity != status.capacity  # the size that fails
    if is_leaving or incidents.replaced(found) != incidents.replaced(status):
        pods = selection.choose_pods(seen, spec, found)
    status = found
    waiting = status.restarts.backoff
    hold = backoff_rules.wait_until(waiting, seen.now)
    held, look_at = backoff_rules.find_held(waiting, pods.missing, seen.pods, seen.now)
    pods = replace(pods, missing=pods.missing - held, wake_at=first(pods.wake_at, hold or None, look_at))
    if is_native:
        decision = native_rendezvous.decide(seen, spec, status)
    else:
        whole = hold if backoff_rules.is_whole(waiting, seen.now) else 0.0
        situation = replace(
            situation,
            hold_until=max(flapping.hold_until(status.restarts, seen.now), whole),
            missing=pods.missing,
            restarts=status.restarts.total,
            repeats=worlds.count_repeats(status.restarts),
            ordered=incidents.find_ordered(status),
            before=status.restarts.ordered.before if status.restarts.ordered else None,
            code=updating.code_of(status),  # a failure may have taken it back
        )
        decision = decide.decide(situation, verdicts)
    checks = probing.decide(situation)
    if decision.world is not None or checks.accuses:
        status = revise(status, preflight=probing.record(status.preflight, situation))
    decision = replace(
        decision,
        directives={**decision.directives, **checks.directives},
        wake_at=first(decision.wake_at, checks.wake_at),
    )
    return _write(seen, config, spec, status, pods, decision)


def _note_incidents(seen: Seen, spec: api.Spec, status: api.Status) -> api.Status:
    """The status with what the rules have found, and with the condition that tells it."""
    if spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR:
        return status
    after = incidents.update(spec, status, seen.health, seen.now, seen.agents)
    if not after.incidents and after.condition("Incident") is None:
        return after
    truth, reason, message = incidents.describe(after.incidents)
    if not truth and after.condition("Incident") is None:
        return after  # it remembers how well the script did
    return revise(
        after, conditions=reporting.with_condition(after.conditions, "Incident", truth, reason, message, seen.now)
    )


def _find_stragglers(seen: Seen, spec: api.Spec, status: api.Status) -> list[api.StragglerStatus]:
    if spec.health.stragglers is None:
        return []
    present = {p.uid for p in seen.pods}
    found = stragglers.update(status.stragglers, status.rendezvous, seen.agents, present, seen.now)
    return stragglers.choose_replacement(spec, revise(status, stragglers=found), seen.now)


def _mark_leaving(seen: Seen, world: api.RendezvousStatus, pods: PodSelection) -> api.RendezvousStatus:
    """Record which members are leaving, so that the end of their pods is not a loss."""
    live = {p.uid: p for p in seen.pods if not p.terminal}
    members = [_with_leaving(m, pods.leaving(live[m.uid])) if m.uid in live else m for m in world.members]
    return revise(world, members=members)


def _with_leaving(member: api.Member, why: str) -> api.Member:
    return member if (member.leaving or "") == why else revise(member, leaving=why or None)


def _situation(seen: Seen, config: Config, spec: api.Spec, status: api.Status, pods: PodSelection) -> Situation:
    workers = []
    worth = growth.is_worth_growing(status, status.rendezvous.world_size, pods.size.wanted)
    for pod in seen.pods:
        gone = pods.departing.get(pod.uid)
        # The pool makes room for its own growth: the pods that it requested only waited for others to leave.
        hold = 0.0 if seen.job.is_sized_by_pool else growth.held_until(pod, status, config.stable_seconds)
        if not worth:
            hold = max(hold, seen.now + 60)
        hold = max(hold, seen.contested_until)
        patient, replaced = bool(gone and gone.patient), pod.uid in pods.replaced
        agent = seen.agents.get(pod.uid)
        node = seen.nodes.get(pod.node)
        place = node.place if node is not None else ()
        workers.append(
            Worker(pod, agent, pods.leaving(pod), patient=patient, replaced=replaced, place=place, held_until=hold)
        )
    return Situation(
        world=status.rendezvous,
        workers=tuple(workers),
        sizes=legal.sizes_of(spec, pods.size.world, pods.capacity.failed_sizes),
        layout=spec.layout,
        now=seen.now,
        hub_started=seen.hub_started,
        missing=pods.missing,
        grace=float(spec.elastic_policy.graceful_shutdown_timeout_seconds),
        broken_since=_broken_since(status),
        ordered=incidents.find_ordered(status),
        code=updating.code_of(status),
        settings=config.membership,
    )


def _broken_since(status: api.Status) -> float | None:
    """Since when no complete world has been running; None if one is."""
    running = status.condition("Running")
    if running is None or not status.goodput.since:
        return parse_time(status.rendezvous.formed_time)
    return None if running.status == "True" else parse_time(running.last_transition_time)


def _check_success(spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict]) -> str:
    """Why the job is complete; "" if it is not."""
    succeeded = [j for j in verdicts if j.health is MemberHealth.SUCCEEDED]
    if spec.success_policy is api.SuccessPolicy.RANK0 and any(j.member.rank == 0 for j in succeeded):
        return "rank 0 succeeded"
    if not succeeded or len(succeeded) < len(verdicts):
        return ""
    return f"all {len(verdicts) + len(status.rendezvous.succeeded)} members succeeded"


# --- writes ----------------------------------------------------------------------------------------------


def _write(
    seen: Seen, config: Config, spec: api.Spec, status: api.Status, pods: PodSelection, decision: Decision
) -> Plan:
    status = revise(status, rendezvous=next_status.build_rendezvous(seen, status, pods, decision))
    status = next_status.build(seen, spec, status, pods, decision)
    status = updating.note(seen, spec, status)
    silent = first(next_status.find_agentless(seen, spec, status).at, silence.find_no_progress(status, seen.now).at)
    calm = flapping.find_restless(status, seen.now).at
    late = first(*(health_watch.due_at(rule, status) for rule in health_watch.rules_of(spec)))
    late = late if late is not None and late > seen.now else None
    trial = updating.due_at(status, seen.now)
    existing = {(kind, name): digest for kind, name, digest in seen.children}
    create = _new_pods(seen, config, spec, status, pods)
    # Pods created in this pass are counted already, which saves a second write.
    status = revise(status, replicas=status.replicas + len(create))
    wanted = children.wanted_children(seen.job, spec, config)
    return Plan(
        status=status,
        reason=decision.reason,
        create=create,
        # Pods of a deleted job are garbage-collected after it, but the watch events of both may arrive in any order.
        confirm=bool(create) and seen.job.status.replicas > 0,
        delete=selection.plan_deletions(
            seen,
            status,
            pods,
            decision.verdicts if decision.state is not State.REGROUPING else (),
            is_waiting=decision.state is State.WAITING,
        ),
        ensure=tuple(c for c in wanted if children.needs_write(c, existing)),
        remove=children.unwanted_children(wanted, existing, seen.job),
        resize=policy.find_resizes(seen.pods, spec, seen.quota, seen.why_unresized),
        directives={**decision.directives, **selection.dismiss(seen, status, pods)},
        events=(
            *reporting.describe_changes(seen.job.status, status, decision, seen.now),
            *updating.find_events(seen.job.status, status),
        ),
        announces=decision.world is not None,
        set_replicas=written.find_replicas(seen.job, spec, pods.size),
        set_suspend=incidents.is_to_suspend(spec, status),
        is_pool_size=spec.is_pooled,
        asks=pods.asks,
        wake_at=first(
            *(decision.wake_at, pods.wake_at, next_status.progress_due(seen, status), silent, calm, late, trial)
        ),
    )


def _new_pods(seen: Seen, config: Config, spec: api.Spec, status: api.Status, pods: PodSelection) -> tuple[NewPod, ...]:
    # What this pass has noted is not in the memory of all jobs yet.
    own = faulty_nodes.names_of(faulty_nodes.remember([(seen.job.name, status.node_faults)], seen.now))
    # What others say may be wrong, or a lie: it must not leave this job without a node.
    hearsay = () if spec.health.avoid_nodes is api.AvoidNodes.REQUIRED else seen.suspected_nodes
    avoid = tuple(
        sorted(
            {
                *own,
                *seen.faulty_nodes,
                *hearsay,
                *stragglers.nodes_of(status.stragglers),
                *incidents.replaced(status).values(),
            }
            - {""}
        )
    )
    # torch's own rendezvous identifies pods by index: the first one hosts the store.
    limit = None if spec.rendezvous.backend is api.RendezvousBackend.OPERATOR else pods.size.wanted
    gang = children.choose_gang(spec, config, seen.pods)
    if seen.quota is not None:
        indices = [i for i in policy.admitted_indices(seen.pods, seen.quota, spec) if limit is None or i < limit]
        return tuple(NewPod(i, avoid, seen.quota.placement(i), gang) for i in indices[: pods.missing])
    return tuple(NewPod(i, avoid, gang=gang) for i in policy.free_indices(seen.pods, pods.missing, limit=limit))
