"""Builds the status of a running job: its world, conditions, goodput and progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob_operator import api
from elasticjob_operator.failures import backoff_rules, copies, lost_members, silence, waiting
from elasticjob_operator.history import goodput, worlds
from elasticjob_operator.membership.decide import Decision, State
from elasticjob_operator.membership.member_health import MemberHealth
from elasticjob_operator.model import contradictions
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import archiving, flapping, policy, reporting
from elasticjob_operator.plan.selection import PodSelection
from elasticjob_operator.plan.values import Seen
from elasticjob_operator.sizing import legal, written
from elasticjob_operator.sizing.values import Size
from elasticjob_operator.times import parse_time


def build_rendezvous(seen: Seen, status: api.Status, pods: PodSelection, decision: Decision) -> api.RendezvousStatus:
    """The world after this decision."""
    before = status.rendezvous
    world, lost = decision.world or before, []
    if decision.world is not None:
        ended = [m.uid for m in pods.succeeded]
        world = revise(world, succeeded=[*before.succeeded, *ended])
        lost = [j.member for j in decision.verdicts if j.health is MemberHealth.LOST and not j.leaving]
    back = {m.uid for m in world.members}  # a member that was only cut off may have joined again
    awaited = {p.uid for p in seen.pods} - back - {*status.restarts.counted}
    world = revise(world, lost=lost_members.update(before.lost, lost, before.generation, awaited))
    size = 0 if decision.state in (State.WAITING, State.REGROUPING) else len(world.members)
    processes = sum(m.nproc for m in world.members) if size else 0
    return revise(world, world_size=size, processes=processes)


def progress_due(seen: Seen, status: api.Status) -> float | None:
    """When a progress report that was held back is due to be written."""
    if status.progress is None or seen.step in (None, status.progress.step):
        return None
    last = parse_time(status.progress.last_update_time)
    return None if last is None else last + reporting.PROGRESS_SECONDS


def build(seen: Seen, spec: api.Spec, status: api.Status, pods: PodSelection, decision: Decision) -> api.Status:
    """The status of a running job, computed completely from the previous status and the decision."""
    now, world = seen.now, status.rendezvous
    training = reporting.is_training(decision)
    members = {m.uid for m in world.members}
    reports = [a for uid, a in seen.agents.items() if uid in members]
    progress = reporting.update_progress(status.progress, reports, now=now)
    saves = progress != status.progress or not training  # the waits for checkpoints cause no writes of their own
    formed = worlds.watch(revise(status, rendezvous=seen.job.status.rendezvous), world, now)
    happened = goodput.watch(
        status.goodput,
        running=training,
        formed=world.generation,
        now=now,
        cause=world.reason or "",
        reported=reporting.read_reports(reports, status.goodput, world.generation, saves=saves),
    )
    status = goodput.update(status, (*formed, *happened))
    live = [p for p in seen.pods if p.live]
    if live and all(policy.is_current(p, spec) for p in live):
        status = revise(status, template_hash=spec.template_hash)
    room = pods.capacity
    if training and len(world.members) >= pods.size.world:
        room = revise(room, withdrawn=0, attempts=0, retry_time=None, said=None)
    running, reason, message = reporting.running_condition(decision, world.generation, len(world.members))
    failing = None if running else backoff_rules.describe(status)
    if failing:
        reason, message = failing
    conditions = reporting.with_condition(status.conditions, "Running", running, reason, message, now)
    problem = _find_problem(seen, spec, status, pods.size, room)
    if problem and decision.state is not State.ENDING:
        conditions = reporting.with_condition(conditions, "Degraded", True, *problem, now)
    elif status.condition("Degraded"):
        conditions = reporting.with_condition(conditions, "Degraded", False, "AllWanted", "", now)
    first = seen.agents.get(world.members[0].uid) if training and world.members else None
    told = None if first is None else first.state.checkpoint
    before = status.condition("CheckpointCopied")
    copied = copies.find_copies(before, told, spec.checkpoints, seen.agents.values())
    if copied is not None:
        conditions = reporting.with_condition(conditions, "CheckpointCopied", *copied, now)
    status = archiving.note(seen, spec, revise(status, conditions=conditions))
    conditions = status.conditions
    conditions = _note_progress(revise(status, conditions=conditions), seen.agents if training else {}, now)
    return revise(
        status,
        scaling=written.build_status(seen.job, spec, pods.size, seen.pool, reported=progress != status.progress),
        phase=reporting.phase_of(decision, world.generation),
        conditions=conditions,
        capacity=room if room != api.CapacityStatus() else None,
        replicas=sum(1 for p in seen.pods if p.live),
        ready_replicas=len(world.members) if training else 0,
        progress=progress,
    )


def _note_progress(status: api.Status, agents: Mapping[str, Agent], now: float) -> list[api.Condition]:
    """The conditions, with NoProgress set to True, or to Unknown if nobody knows: the script reports no steps, or a
    hang may be hidden.
    """
    masked = silence.find_masked_hang(status.rendezvous, agents)
    found = masked if masked.reason else silence.find_no_progress(status, now)
    if found.reason:
        truth = True if found.reason == "NoStep" else None
        return reporting.with_condition(status.conditions, "NoProgress", truth, found.reason, found.message, now)
    if status.condition("NoProgress"):
        return reporting.with_condition(status.conditions, "NoProgress", False, "NothingToTell", "", now)
    return status.conditions


def find_agentless(seen: Seen, spec: api.Spec, status: api.Status) -> silence.Finding:
    if spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR or status.rendezvous.generation:
        return silence.Finding()
    return silence.find_agentless(
        seen.pods,
        seen.agents.keys(),
        lambda: "; ".join(filter(None, (contradictions.advise(spec), seen.altered))),
        hub_started=seen.hub_started,
        now=seen.now,
    )


def _find_problem(
    seen: Seen, spec: api.Spec, status: api.Status, size: Size, room: api.CapacityStatus
) -> tuple[str, str] | None:
    """The reason of Degraded: problems that the user has to fix come first."""
    if seen.problem:
        reason, message = seen.problem
        return reason, "; ".join(filter(None, (message, seen.job.problems_text)))[:4096]
    if seen.job.problems:
        return "InvalidSpec", seen.job.problems_text
    if not legal.sizes_of(spec, spec.wanted).legal(spec.wanted):
        return "NoLegalSize", legal.describe_none(spec)
    agentless = find_agentless(seen, spec, status)
    if agentless.reason:
        return agentless.reason, agentless.message
    found = reporting.find_problem(seen.pods, world_size=status.rendezvous.world_size, wanted=size.wanted, room=room)
    template = spec.template["spec"]
    if found is not None:
        found = found[0], waiting.name_cause(*found, template)
        if found[0] == "ImagePullFailed" and seen.altered:
            found = found[0], f"{found[1]}; {seen.altered}"
    is_vague = (
        found is not None and found[0] == "Unschedulable" and (room.withdrawn or waiting.waits_for_volume(found[1]))
    )
    if found is None or found[0] == "BelowWanted" or is_vague:
        quiet = waiting.find_problem(seen.pods, seen.said, template, seen.now, nodes=seen.nodes)
        told = status.condition("Degraded")
        lived = status.restarts.backoff.lived_seconds if status.restarts.backoff else 0.0
        if quiet is None and told and waiting.is_still_told(told.reason, seen.pods, size.wanted, lived, seen.now):
            quiet = told.reason, told.message
        found = quiet or found
    left = flapping.find_restless(status, seen.now)
    if left.reason and (found is None or found[0] == "BelowWanted"):
        return left.reason, left.message
    if found is not None and found[0] == "BelowWanted":
        is_limited = size.limited_by in ("queue", "legalSizes")
        limited = (found[0], f"{found[1]}: {size.reason}") if is_limited else found
        return backoff_rules.describe(status) or limited
    return found or _find_difference(seen, spec, status)


def _find_difference(seen: Seen, spec: api.Spec, status: api.Status) -> tuple[str, str] | None:
    """How the pods differ from the template."""
    held = next((p for p in seen.pods if p.live and p.resize_problem), None)
    if held is not None:
        return "ResizePending", f"{held.name} keeps its CPU and memory: {held.resize_problem}"
    alone = next((p for p in seen.pods if p.live and p.dead_sidecar), None)
    if alone is not None:
        remedy = ": raise its resources.limits.memory" if alone.dead_sidecar.endswith("[OOMKilled]") else ""
        return "SidecarFailed", f"{alone.name}: {alone.dead_sidecar}, and its trainer goes on without it{remedy}"
    if status.template_hash == spec.template_hash:
        return None
    message = "spec.template has changed: suspend and resume the job to recreate all its pods"
    why = seen.why_unresized
    return "TemplateChanged", f"{message}. They cannot be resized in place: {why}" if why else message
