"""Failure accounting: finds new failures, who is responsible for each, and what it costs the budget. Pure.

There are three sources of failures: failed pods, agents that report failed workers, and lost members. A broken world is
one failure of the job, so members are examined only after all of them have stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticjob_operator import api
from elasticjob_operator.api import podtemplate, wire
from elasticjob_operator.failures import backoff_rules, budget, classify, lost_members, mistakes
from elasticjob_operator.failures.backoff_rules import Setback
from elasticjob_operator.failures.classify import Blame, Failure, Verdict
from elasticjob_operator.history import faulty_nodes, rank_failures, worlds
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, ended_well
from elasticjob_operator.model import contradictions
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import flapping, policy, reporting, updating
from elasticjob_operator.plan.values import Seen
from elasticjob_operator.sizing import legal, retreat
from elasticjob_operator.sizing.retreat import FailedChange
from elasticjob_operator.times import parse_time

REFUSED_TRIES = 2  # of a script that the runtime refuses: it would go on to do so, whatever is trained in between
NEVER_JOINED_TRIES = 2  # a single case may be a pod that was released by an operator that has since died
CUT_OFF = 0.999  # creation times are whole seconds; only what ends within one may be as old as what has just failed
_UNSETTLED = (MemberHealth.RUNNING, MemberHealth.STARTING, MemberHealth.STOPPING, MemberHealth.SUSPECT)


@dataclass(frozen=True, slots=True)
class Accounting:
    """The status including the failures of this pass, and the reason if the job has to fail."""

    status: api.Status
    reason: str = ""
    message: str = ""


def book(
    seen: Seen, spec: api.Spec, status: api.Status, situation: Situation, verdicts: Sequence[MemberVerdict]
) -> Accounting:
    """Account for all failures since the last pass."""
    status = _note_unsaved(seen, status, verdicts)
    found = find_failures(seen, spec, status, verdicts)
    if not found:
        status, found = _note_restless(seen, status, situation, verdicts)
    if not found:
        if situation.missing:
            status = _note_departed(seen, spec, status, verdicts)
        return Accounting(_forget_counted(seen, status))
    found = [replace(one, altered=seen.altered) if one.blame is Blame.USER else one for one in found]
    failure = classify.first_failure(found)
    verdict = classify.apply_rules(spec.failure_policy.rules, failure)
    if verdict is Verdict.RESTART and any(f.blame is Blame.INFRASTRUCTURE for f in found):
        verdict = Verdict.RESTART_FREE
    uncharged, charged_before = status, status.restarts.total
    status = _charge(seen, spec, status, found, failure, verdict)
    fresh = status.restarts.total > charged_before
    status = _note_failures(seen, spec, status, found, failure, verdict, fresh=fresh)
    told = reporting.describe_failure(failure)
    if verdict in (Verdict.RESTART, Verdict.FAIL) and updating.is_on_trial(status):
        return Accounting(updating.go_back(uncharged, status, told, seen.now))
    change = retreat.find_failed_change(status.timeline, status.goodput.measured, seen.now)
    is_over = status.restarts.user > spec.elastic_policy.max_restarts
    if verdict is Verdict.RESTART and change:
        others = _find_other_size(spec, status, change)
        if retreat.should_go_back(change, others, is_last_try=is_over):
            return Accounting(_go_back(spec, status, change))
    is_ruled = classify.find_rule(spec.failure_policy.rules, failure) is not None
    if verdict is Verdict.RESTART and not is_ruled and _is_refused(status.restarts):
        times = f"{status.restarts.alike} times, and a restart does not mend it"
        return Accounting(status, "ScriptRefused", f"the runtime has refused the script {times}; last: {told}")
    if verdict is Verdict.RESTART and not is_ruled and _is_hopeless(seen, status):
        tries = backoff_rules.HOPELESS_TRIES
        return Accounting(
            status, "CrashLoop", f"the same error {tries} times in a row before the first step; last: {told}"
        )
    if verdict is Verdict.FAIL:
        return Accounting(status, failure.reason if failure.fatal else "FailurePolicy", told)
    if verdict is Verdict.RESTART and is_over:
        limit = spec.elastic_policy.max_restarts
        sizes = f"; it trained with {change.worked} pods and has failed with {change.failed}" if change else ""
        same = worlds.tell_repeated(status.restarts, status.timeline)
        return Accounting(
            status,
            "MaxRestartsExceeded",
            f"more than elasticPolicy.maxRestarts={limit} restarts{sizes}{same}; last: {told}",
        )
    return Accounting(status)


def _is_refused(restarts: api.RestartStatus) -> bool:
    return restarts.alike >= REFUSED_TRIES and mistakes.is_refusal(restarts.error or "")


def _find_other_size(spec: api.Spec, status: api.Status, change: FailedChange) -> int:
    """The largest legal size without those that fail; 0 if there is none, or too many were tried."""
    known = status.capacity.failed_sizes if status.capacity else []
    if sum(size < change.worked for size in known) >= retreat.MOST_TRIED:
        return 0
    return legal.sizes_of(spec, spec.wanted, (*known, *change.left_out)).legal(spec.wanted)


def _go_back(spec: api.Spec, status: api.Status, change: FailedChange) -> api.Status:
    """Leave out the size that did not work, at once. What was tried is not charged."""
    user, stuck = (max(0, count - change.worlds) for count in (status.restarts.user, status.restarts.stuck))
    return revise(
        status,
        capacity=retreat.leave_out(status.capacity, change, backoff_rules.digest_cause(spec)),
        restarts=revise(status.restarts, user=user, stuck=stuck, error=None, alike=0, backoff=None),
    )


def _note_unsaved(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> api.Status:
    """Record workers that ended with an error while they were asked to save. It is no failure of the world, and free;
    but the next one begins at an older checkpoint.
    """
    generation = status.rendezvous.generation
    known = {one.rank for one in status.failures if one.reason == classify.NOT_SAVED and one.generation == generation}
    records: list[api.FailureStatus] = []
    for j in verdicts:
        agent = j.worker.agent if j.worker else None
        unsaved = agent.state.unsaved if agent else None
        if agent is None or unsaved is None or unsaved.generation != generation:
            continue
        if len(known) + len(records) >= rank_failures.MOST_FAILURES:
            break  # further ones would take the place of these, in each pass
        if (j.member.rank if unsaved.rank is None else unsaved.rank) in known:
            continue
        failure = classify.failure_of_agent(agent, j.member.node, unsaved, j.member.rank)
        failure = replace(failure, reason=classify.NOT_SAVED)
        record = reporting.failure_status(failure, generation, seen.now)
        records.append(revise(record, message=f"{record.message}{reporting.describe_cost(status.progress)}"))
    if not records:
        return status
    return revise(status, last_failure=records[0], failures=rank_failures.merge(status.failures, records))


def _note_restless(
    seen: Seen, status: api.Status, situation: Situation, verdicts: Sequence[MemberVerdict]
) -> tuple[api.Status, list[Failure]]:
    """Account for a world that members left without a known failure: free a few times, then charged to the first."""
    generation = status.rendezvous.generation
    if generation <= status.restarts.generation:
        return status, []
    first = flapping.find_first(situation, seen.job.status, verdicts)
    if first is None:
        return status, []
    restarts, is_free = flapping.note(status.restarts, generation, seen.now)
    return revise(status, restarts=restarts), [] if is_free else [flapping.failure_of(first)]


def _charge(
    seen: Seen, spec: api.Spec, status: api.Status, found: Sequence[Failure], failure: Failure, verdict: Verdict
) -> api.Status:
    world, failed = status.rendezvous, {f.pod_uid for f in found if f.pod_uid}
    restarts = budget.charge(
        status.restarts,
        spec.elastic_policy,
        free=verdict is Verdict.RESTART_FREE,
        generation=world.generation if any(f.rank is not None and not f.generation for f in found) else 0,
        counted=failed,
        step=seen.step if seen.step is not None else (status.progress.step if status.progress else None),
        now=seen.now,
        error=mistakes.find_place(failure),
        began=max((_setback(p, status, seen.now).began for p in seen.pods if p.uid in failed), default=None),
    )
    faults = status.node_faults
    unfit = {f.node for f in found if f.reason in (classify.PREFLIGHT, classify.CORRUPT)}
    blamed = sorted({f.node for f in found if f.node and f.blame is Blame.INFRASTRUCTURE and not f.is_cut})
    for node in blamed[-faulty_nodes.MOST_OF_A_STATUS :]:
        faults = faulty_nodes.note(faults, node, seen.now, faulty_nodes.PROOF if node in unfit else 1)
    told = itertools.islice(classify.others_of(found, failure), rank_failures.MOST_FAILURES - 1)
    records = [reporting.failure_status(f, f.generation or world.generation, seen.now) for f in (failure, *told)]
    merged = rank_failures.merge(status.failures, records)
    return revise(
        status,
        restarts=restarts,
        last_failure=records[0],
        failures=merged,
        node_faults=faults,
        diagnosis=reporting.diagnose(failure, classify.others_of(found, failure), world.generation, seen.now)
        or status.diagnosis,
    )


# --- back-off --------------------------------------------------------------------------------------------


def _note_failures(
    seen: Seen,
    spec: api.Spec,
    status: api.Status,
    found: Sequence[Failure],
    failure: Failure,
    verdict: Verdict,
    *,
    fresh: bool,
) -> api.Status:
    pods = {p.uid: p for p in seen.pods}
    charged = status.restarts.user if verdict is Verdict.RESTART else 0
    # If the agent of the failed worker is alive, no pod is replaced: it is the world that is retried.
    inside = any(f.rank is not None and f.reason != classify.LOST and f.pod_uid not in pods for f in found)
    whole = bool(charged) or inside
    noted = backoff_rules.note(
        status.restarts.backoff,
        [replace(_setback(pods.get(f.pod_uid), status, seen.now), is_cut=f.is_cut) for f in found],
        reason=classify.PREFLIGHT if failure.reason == classify.PREFLIGHT else "CrashLoop" if whole else "BackOff",
        whole=whole,
        charged=charged,
        fresh=fresh,
        step=seen.step,
        now=seen.now,
    )
    if noted is not None and charged:
        stepless = seen.step is None and status.progress is None
        error = mistakes.mistake_of(found) if stepless else ""
        noted = backoff_rules.note_error(
            noted, error, {f.node for f in found if f.node and not classify.is_secondary(f)}
        )
    return _with_backoff(spec, status, noted)


def _note_departed(seen: Seen, spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict]) -> api.Status:
    """Back off for pods that others delete or that succeed outside of a world. Neither is a failure."""
    known = {j.member.uid for j in verdicts} | {*status.rendezvous.succeeded, *status.restarts.counted}
    gone = [p for p in seen.pods if p.node and (p.deleting is not None or p.terminal) and p.uid not in known]
    early = {p.uid: s for p in gone if (s := _setback(p, status, seen.now)).lived < backoff_rules.STABLE_SECONDS}
    worlds = _members_sent_away(seen, status, verdicts)
    if not early and not worlds:
        return status
    noted = backoff_rules.note(
        status.restarts.backoff,
        [*early.values(), *worlds],
        reason="BackOff",
        whole=False,
        charged=0,
        fresh=False,
        step=seen.step,
        now=seen.now,
    )
    status = _with_backoff(spec, status, noted)
    counted = sorted({*status.restarts.counted, *early})
    return revise(status, restarts=revise(status.restarts, counted=counted))


def _members_sent_away(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Setback]:
    """Members whose pods others delete; noted once per world, since the first deletion ends it."""
    gone = [j for j in verdicts if j.leaving in policy.SENT_AWAY]
    setback = _setback(None, status, seen.now)
    known = parse_time(status.restarts.backoff.since) if status.restarts.backoff else None
    if setback.lived >= backoff_rules.STABLE_SECONDS or (known is not None and known >= setback.began):
        return []
    return [setback] * len(gone)


def _setback(pod: Pod | None, status: api.Status, now: float) -> Setback:
    if pod is not None:
        lived = 0.0 if pod.began is None else now - pod.began
        return Setback(pod.created + (CUT_OFF if lived >= backoff_rules.HASTY_SECONDS else 0.0), lived)
    formed = parse_time(status.rendezvous.formed_time) or now
    return Setback(formed, now - formed)


def _with_backoff(spec: api.Spec, status: api.Status, noted: api.BackoffStatus | None) -> api.Status:
    if noted is not None and noted != status.restarts.backoff:
        noted = revise(noted, cause=backoff_rules.digest_cause(spec))
    return revise(status, restarts=revise(status.restarts, backoff=noted))


def _is_hopeless(seen: Seen, status: api.Status) -> bool:
    noted = status.restarts.backoff
    return noted is not None and backoff_rules.is_hopeless(noted, {p.node for p in seen.pods if p.node})


# --- new failures ----------------------------------------------------------------------------------------


def find_failures(seen: Seen, spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Failure]:
    """Failures that have not been accounted for yet."""
    ranks = {j.member.uid: j.member.rank for j in verdicts}
    settled = not any(j.health in _UNSETTLED for j in verdicts)
    lost = status.rendezvous.lost
    is_native = spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR
    counted = frozenset(status.restarts.counted)
    world = {} if is_native else _find_worlds(status.rendezvous)
    probe = podtemplate.find_killing_probe(spec.template)
    found = [
        lost_members.place(_failure_of(pod, seen, spec, status, ranks.get(pod.uid), probe), lost, pod.uid)
        for pod in sorted(seen.pods, key=lambda p: p.index)
        if (settled if pod.uid in ranks else pod.deleting is None)  # the exit of a pod being deleted does not matter
        and pod.uid not in counted
        and (
            pod.phase is PodPhase.FAILED
            or _never_joined(pod, seen, spec, status)
            or _is_unsaid(pod, seen, world.get(pod.uid))
            or (bool(probe) and _was_asked_to_stop(pod, seen))
        )
    ]
    if settled and status.rendezvous.generation > status.restarts.generation:
        found += _failures_of_members(seen, status, verdicts)
    return found


def _was_asked_to_stop(pod: Pod, seen: Seen) -> bool:
    """Whether a pod that nobody deletes has left because of SIGTERM."""
    agent, node = seen.agents.get(pod.uid), seen.nodes.get(pod.node)
    if agent is None or agent.state.phase is not wire.AgentPhase.LEAVING or pod.phase is not PodPhase.SUCCEEDED:
        return False
    return pod.deleting is None and not pod.disruption and node is not None and node.ready and not node.leaving


def _failure_of(pod: Pod, seen: Seen, spec: api.Spec, status: api.Status, rank: int | None, probe: str) -> Failure:
    if probe and _was_asked_to_stop(pod, seen):
        return classify.failure_of_probed_end(pod, probe)
    deadline = ""
    if classify.has_foreign_deadline(pod, spec.template):
        is_earlier = pod.template_hash != spec.template_hash
        deadline = classify.tell_deadline(pod, spec.template, "has passed for", is_earlier=is_earlier)
    failure = classify.failure_of_pod(pod, seen.nodes.get(pod.node), rank, probe, deadline)
    unfit = classify.blame_unfit_node(failure, classify.last_words_of(pod, seen.agents.get(pod.uid)))
    if unfit is not failure and (rank is None or unfit.reason == classify.CORRUPT):
        return unfit
    if pod.phase is PodPhase.SUCCEEDED and status.rendezvous.generation:
        return classify.failure_of_unsaid_end(pod, rank, seen.agents.get(pod.uid))
    if pod.phase is PodPhase.SUCCEEDED:
        advice = contradictions.advise(spec)
        return classify.never_joined(failure, advice, again=status.restarts.user >= NEVER_JOINED_TRIES)
    # A command that has run before is not broken, so the node is to blame.
    return classify.blame_node(failure) if failure.fatal and status.rendezvous.generation else failure


def _never_joined(pod: Pod, seen: Seen, spec: api.Spec, status: api.Status) -> bool:
    """Whether the pod's program succeeded without ever joining a world."""
    return (
        spec.rendezvous.backend is api.RendezvousBackend.OPERATOR
        and status.rendezvous.generation == 0
        and pod.phase is PodPhase.SUCCEEDED
        and pod.deleting is None
        and pod.uid not in seen.agents
    )


def _failures_of_members(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Failure]:
    """Members that vanished or, if none did, the failures that agents reported, ordered by time.

    Workers whose peer died fail too: if a member vanished, the failures that others report are consequences.
    """
    told: list[tuple[float, Failure]] = []
    lost: list[MemberVerdict] = []
    early: api.Member | None = None
    for j in verdicts:
        agent = j.worker.agent if j.worker else None
        if agent and agent.state.failure and agent.state.failure.generation == status.rendezvous.generation:
            failure = classify.failure_of_agent(agent, j.member.node, agent.state.failure, j.member.rank)
            if agent.state.phase is wire.AgentPhase.FAILED:
                failure = classify.blame_unfit_node(failure, agent.state.failure.message or "")
            if j.health is MemberHealth.LOST:  # its pod will fail next, which is the same failure
                failure = classify.with_pod(failure, agent.pod_uid)
            told.append((agent.state_since, failure))
        elif (
            j.health is MemberHealth.LOST and j.worker and ended_well(j.worker.pod, agent, status.rendezvous.generation)
        ):
            early = early or j.member
        elif j.health is MemberHealth.LOST and not (j.worker and j.worker.pod.terminal):
            lost.append(j)
    if not lost:
        found = [failure for _, failure in sorted(told, key=lambda t: t[0])]
        return [classify.failure_of_early_end(early, found), *found] if early is not None and found else found
    return [
        classify.failure_of_loss(j.member.pod, j.member.node, j.member.rank, j.why)
        for j in lost
        if not j.leaving and _is_vanished(j, seen)
    ]


def _find_worlds(world: api.RendezvousStatus) -> dict[str, int]:
    """The pods (UIDs) whose end their agents have to announce, with the generation that each is in."""
    before = {m.uid: m.generation for m in world.lost}
    now = {m.uid: world.generation for m in world.members if not m.leaving}
    return before | now


def _is_unsaid(pod: Pod, seen: Seen, generation: int | None) -> bool:
    """Whether a member's command ended with 0 in the middle of its world, and nobody had asked it to."""
    if generation is None or pod.phase is not PodPhase.SUCCEEDED or pod.deleting is not None:
        return False
    agent = seen.agents.get(pod.uid)
    if agent is None:
        return not ended_well(pod, None, generation)
    return (agent.state.phase, agent.state.generation) == (wire.AgentPhase.RUNNING, generation)


def _is_vanished(verdicts: MemberVerdict, seen: Seen) -> bool:
    """Whether a member was lost without a failed pod: deleted, silent, or on a dead node."""
    worker = verdicts.worker
    if worker is None:
        return True
    node = seen.nodes.get(worker.pod.node)
    silent = worker.agent is not None and (worker.agent.lost_by == "silent" or worker.agent.mute)
    return silent or node is None or not node.ready


def remember_counted(before: api.Status, after: api.Status) -> api.Status:
    """The status, or the one before if it differs only in records of pods that are gone: the next write drops them."""
    if not set(after.restarts.counted) < set(before.restarts.counted):
        return after
    kept = revise(after, restarts=revise(after.restarts, counted=before.restarts.counted))
    return before if kept == before else after


def _forget_counted(seen: Seen, status: api.Status) -> api.Status:
    """Drop the records of pods that no longer exist."""
    present = {p.uid for p in seen.pods}
    kept = [uid for uid in status.restarts.counted if uid in present]
    if kept == status.restarts.counted:
        return status
    return revise(status, restarts=revise(status.restarts, counted=kept))
