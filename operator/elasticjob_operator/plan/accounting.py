"""Failures are accounted for once: which are new, whose fault they are, and what they cost the budget. Pure.

Three witnesses tell of failures: pods that ended badly, agents whose workers failed, and members that are lost. A world
that breaks is one failure of the job, so members are looked at when all of them have stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob_operator import api
from elasticjob_operator.failures import backoff_rules, budget, classify, nodes
from elasticjob_operator.failures.backoff_rules import Setback
from elasticjob_operator.failures.classify import Blame, Fault, Verdict
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict
from elasticjob_operator.model.containers import PodPhase
from elasticjob_operator.model.observe import Pod, parse_time
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import flapping, policy, reporting
from elasticjob_operator.plan.values import Seen

NEVER_JOINED_TRIES = 2  # one may be a pod that was sent home by an operator that died
_UNSETTLED = (MemberHealth.RUNNING, MemberHealth.STARTING, MemberHealth.STOPPING, MemberHealth.SUSPECT)


@dataclass(frozen=True, slots=True)
class Accounting:
    """The status with the failures of this pass booked, and why the job has to fail, where it has."""

    status: api.Status
    reason: str = ""
    message: str = ""


def book(seen: Seen, spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict], missing: int) -> Accounting:
    """Charges what failed since the last pass. `missing`: pods that are to be made."""
    found = find_faults(seen, spec, status, verdicts)
    if not found:
        status, found = _note_restless(seen, spec, status, verdicts)
    if not found:
        if missing:
            status = _note_departed(seen, status, verdicts)
        return Accounting(_forget_counted(seen, status))
    fault = classify.first_fault(found)
    verdict = classify.apply_rules(spec.failure_policy.rules, fault)
    if verdict is Verdict.RESTART and any(f.blame is Blame.INFRASTRUCTURE for f in found):
        verdict = Verdict.RESTART_FREE
    charged_before = status.restarts.total
    status = _charge(seen, spec, status, found, fault, verdict)
    fresh = status.restarts.total > charged_before
    status = _note_failures(seen, status, found, fault, verdict, fresh=fresh)
    told = reporting.tell_fault(fault)
    is_ruled = classify.find_rule(spec.failure_policy.rules, fault) is not None
    if verdict is Verdict.RESTART and not is_ruled and _is_hopeless(seen, status):
        tries = backoff_rules.HOPELESS_TRIES
        return Accounting(
            status, "CrashLoop", f"the same error {tries} times in a row, before a first step; last: {told}"
        )
    if verdict is Verdict.FAIL:
        return Accounting(status, fault.reason if fault.fatal else "FailurePolicy", told)
    if verdict is Verdict.RESTART and status.restarts.user > spec.elastic_policy.max_restarts:
        limit = spec.elastic_policy.max_restarts
        return Accounting(
            status, "MaxRestartsExceeded", f"more than elasticPolicy.maxRestarts={limit} restarts; last: {told}"
        )
    return Accounting(status)


def _note_restless(
    seen: Seen, spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict]
) -> tuple[api.Status, list[Fault]]:
    """A world that members left for nothing that is known: free a few times, then the failure of the first of them."""
    generation = status.rendezvous.generation
    first = flapping.find_first(seen, spec, verdicts) if generation > status.restarts.generation else None
    if first is None:
        return status, []
    restarts, is_free = flapping.note(status.restarts, generation, seen.now)
    return revise(status, restarts=restarts), [] if is_free else [flapping.fault_of(first)]


def _charge(
    seen: Seen, spec: api.Spec, status: api.Status, found: Sequence[Fault], fault: Fault, verdict: Verdict
) -> api.Status:
    world = status.rendezvous
    restarts = budget.charge(
        status.restarts,
        spec.elastic_policy,
        free=verdict is Verdict.RESTART_FREE,
        generation=world.generation if any(f.rank is not None for f in found) else 0,
        counted=[f.pod_uid for f in found if f.pod_uid],
        step=seen.step if seen.step is not None else (status.progress.step if status.progress else None),
        now=seen.now,
        began=max((p.created for p in seen.pods if p.uid in {f.pod_uid for f in found}), default=None),
    )
    offenders = status.node_faults
    for node in sorted({f.node for f in found if f.node and f.blame is Blame.INFRASTRUCTURE}):
        # What a preflight says of a node needs no second witness.
        unfit = any(f.node == node and f.reason == classify.PREFLIGHT for f in found)
        offenders = nodes.note_fault(offenders, node, seen.now, nodes.OFFENCES if unfit else 1)
    record = reporting.failure_status(fault, world.generation, seen.now)
    return revise(status, restarts=restarts, last_failure=record, node_faults=offenders)


# --- how long it is waited for ---------------------------------------------------------------------------


def _note_failures(
    seen: Seen, status: api.Status, found: Sequence[Fault], fault: Fault, verdict: Verdict, *, fresh: bool
) -> api.Status:
    pods = {p.uid: p for p in seen.pods}
    charged = status.restarts.user if verdict is Verdict.RESTART else 0
    # An agent that lives on has a worker that failed: no pod is made anew, so it is the world that is tried again.
    inside = any(f.rank is not None and f.reason != classify.LOST and f.pod_uid not in pods for f in found)
    whole = bool(charged) or inside
    noted = backoff_rules.note(
        status.restarts.backoff,
        [_setback(pods.get(f.pod_uid), status, seen.now) for f in found],
        reason=classify.PREFLIGHT if fault.reason == classify.PREFLIGHT else "CrashLoop" if whole else "BackOff",
        whole=whole,
        charged=charged,
        fresh=fresh,
        step=seen.step,
        now=seen.now,
    )
    if noted is not None and charged:
        stepless = seen.step is None and status.progress is None
        error = classify.mistake_of(found) if stepless else ""
        noted = backoff_rules.note_error(
            noted, error, {f.node for f in found if f.node and not classify.is_secondary(f)}
        )
    return _with_backoff(status, noted)


def _note_departed(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> api.Status:
    """Pods that somebody deletes, or that end well outside of a world: no failures, and made again ever more rarely."""
    members = {j.member.uid for j in verdicts} | set(status.rendezvous.succeeded)
    gone = [
        p
        for p in seen.pods
        if p.node
        and (p.deleting is not None or p.terminal)
        and p.uid not in members
        and p.uid not in status.restarts.counted
    ]
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
    counted = sorted({*status.restarts.counted, *early})
    return revise(status, restarts=revise(status.restarts, backoff=noted, counted=counted))


def _members_sent_away(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Setback]:
    """Members whose pods somebody deletes; noted once for a world, since its first passing is enough to end it."""
    gone = [j for j in verdicts if j.leaving in policy.SENT_AWAY]
    setback = _setback(None, status, seen.now)
    known = parse_time(status.restarts.backoff.since) if status.restarts.backoff else None
    if setback.lived >= backoff_rules.STABLE_SECONDS or (known is not None and known >= setback.began):
        return []
    return [setback] * len(gone)


def _setback(pod: Pod | None, status: api.Status, now: float) -> Setback:
    if pod is not None:
        return Setback(pod.created, 0.0 if pod.began is None else now - pod.began)
    formed = parse_time(status.rendezvous.formed_time) or now
    return Setback(formed, now - formed)


def _with_backoff(status: api.Status, noted: api.BackoffStatus | None) -> api.Status:
    return revise(status, restarts=revise(status.restarts, backoff=noted))


def _is_hopeless(seen: Seen, status: api.Status) -> bool:
    noted = status.restarts.backoff
    return noted is not None and backoff_rules.is_hopeless(noted, {p.node for p in seen.pods if p.node})


# --- what has failed -------------------------------------------------------------------------------------


def find_faults(seen: Seen, spec: api.Spec, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Fault]:
    """What has failed and is not accounted for yet."""
    ranks = {j.member.uid: j.member.rank for j in verdicts}
    settled = not any(j.health in _UNSETTLED for j in verdicts)
    found = [
        _fault_of(pod, seen, status, ranks.get(pod.uid))
        for pod in sorted(seen.pods, key=lambda p: p.index)
        if (settled if pod.uid in ranks else pod.deleting is None)  # one that was sent away may end as it likes
        and pod.uid not in status.restarts.counted
        and (pod.phase is PodPhase.FAILED or _never_joined(pod, seen, spec, status))
    ]
    if settled and status.rendezvous.generation > status.restarts.generation:
        found += _faults_of_members(seen, status, verdicts)
    return found


def _fault_of(pod: Pod, seen: Seen, status: api.Status, rank: int | None) -> Fault:
    fault = classify.fault_of_pod(pod, seen.nodes.get(pod.node), rank)
    unfit = classify.preflight_of(pod, seen.agents.get(pod.uid))
    if unfit and rank is None:
        return classify.failed_preflight(fault, unfit)
    if pod.phase is PodPhase.SUCCEEDED:
        return classify.never_joined(fault, again=status.restarts.user >= NEVER_JOINED_TRIES)
    # A command that once ran is not broken: then it is the node.
    return classify.blame_node(fault) if fault.fatal and status.rendezvous.generation else fault


def _never_joined(pod: Pod, seen: Seen, spec: api.Spec, status: api.Status) -> bool:
    """Its program ended well without having asked for a world."""
    return (
        spec.rendezvous.backend is api.RendezvousBackend.OPERATOR
        and status.rendezvous.generation == 0
        and pod.phase is PodPhase.SUCCEEDED
        and pod.deleting is None
        and pod.uid not in seen.agents
    )


def _faults_of_members(seen: Seen, status: api.Status, verdicts: Sequence[MemberVerdict]) -> list[Fault]:
    """Members that vanished; where none did, failures that agents tell of, in the order of time.

    Workers whose peer died fail too: where a member is lost without a word, what the others tell is a consequence.
    """
    told: list[tuple[float, Fault]] = []
    lost: list[MemberVerdict] = []
    for j in verdicts:
        agent = j.worker.agent if j.worker else None
        if agent and agent.state.failure and agent.state.failure.generation == status.rendezvous.generation:
            fault = classify.fault_of_agent(agent, j.member.node, agent.state.failure, j.member.rank)
            if j.health is MemberHealth.LOST:  # its pod ends next; that is the same failure
                fault = classify.with_pod(fault, agent.pod_uid)
            told.append((agent.state_since, fault))
        elif j.health is MemberHealth.LOST and not (j.worker and j.worker.pod.terminal):
            lost.append(j)
    if not lost:
        return [fault for _, fault in sorted(told, key=lambda t: t[0])]
    return [
        classify.fault_of_loss(j.member.pod, j.member.node, j.member.rank, j.why)
        for j in lost
        if not j.leaving and _is_vanished(j, seen)
    ]


def _is_vanished(verdicts: MemberVerdict, seen: Seen) -> bool:
    """Lost in a way that no pod will give account of: gone, silent, or on a dead node."""
    worker = verdicts.worker
    if worker is None:
        return True
    node = seen.nodes.get(worker.pod.node)
    silent = worker.agent is not None and worker.agent.lost_by == "silent"
    return silent or node is None or not node.ready


def _forget_counted(seen: Seen, status: api.Status) -> api.Status:
    """Pods that are gone need no account any more."""
    present = {p.uid for p in seen.pods}
    kept = [uid for uid in status.restarts.counted if uid in present]
    if kept == status.restarts.counted:
        return status
    return revise(status, restarts=revise(status.restarts, counted=kept))
