"""Updates of a job's code while it runs: which revision worlds are formed with, and when one is taken back. Pure.

`spec.code` asks for a revision. It comes into force once every member of the world has its files, so that a world is
never interrupted for something that is still on its way. Until it has made a step it is on trial: if the job's program
fails in that time, the revision before it is in force again, for the same restart and at no cost to the budget.
"""

from __future__ import annotations

from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import budget
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import reporting
from elasticjob_operator.plan.values import Seen
from elasticjob_operator.times import format_time, parse_time

CONDITION: Final = "CodeUpdated"
UPDATED, STARTING, AWAITED, WENT_BACK = "CodeUpdated", "CodeStarting", "CodeAwaited", "CodeWentBack"
TRIAL_SECONDS: Final = 600.0  # of a world, for a script that reports no steps
SILENT_SECONDS: Final = 3600.0  # ... where the code before has reported some: the first one may be long in coming
_MOST_TEXT: Final = 1024


def follow(seen: Seen, spec: api.Spec, status: api.Status) -> api.Status:
    """The status with the code of the next worlds."""
    code = _prove(seen, status)
    if is_asked(spec, status) and _may_change(spec, code) and _is_there(seen, spec, status):
        assert spec.code is not None, "it is asked for"
        before = api.CodeRevision(revision=code.revision, digest=code.digest)
        code = api.CodeStatus(
            revision=spec.code.revision,
            digest=spec.code.digest,
            time=format_time(seen.now),
            proven=False,
            previous=before if code.proven else None,
        )
    if code == (status.code or api.CodeStatus()):
        return status
    is_new = status.code is None or code.revision != status.code.revision
    return revise(status, code=code, restarts=budget.forget_error(status.restarts) if is_new else status.restarts)


def is_asked(spec: api.Spec, status: api.Status) -> bool:
    """Whether the spec asks for a revision that was never in force."""
    newest = status.code.newest if status.code else 0
    return spec.code is not None and spec.code.revision > newest


def _is_there(seen: Seen, spec: api.Spec, status: api.Status) -> bool:
    return bool(_find_pods(seen, status)) and not _find_unready(seen, spec, status)


def _find_pods(seen: Seen, status: api.Status) -> dict[str, str]:
    """The pods (UIDs) that have to have a revision before it comes into force, with their names: the members of the
    world or, where none trains, whoever is there.
    """
    world = status.rendezvous
    if world.world_size:
        return {m.uid: m.pod for m in world.members}
    return {uid: agent.pod for uid, agent in seen.agents.items() if agent.connected}


def _find_unready(seen: Seen, spec: api.Spec, status: api.Status) -> list[str]:
    """Those of them that cannot run the revision that is asked for: not yet, or never."""
    digest = spec.code.digest if spec.code else None
    is_ours = spec.rendezvous.backend is api.RendezvousBackend.OPERATOR
    return [pod for uid, pod in _find_pods(seen, status).items() if not is_ours or not _has(seen, uid, digest)]


def _has(seen: Seen, uid: str, digest: str | None) -> bool:
    agent = seen.agents.get(uid)
    return digest is None or (agent is not None and digest in agent.state.codes)


def _may_change(spec: api.Spec, code: api.CodeStatus) -> bool:
    """A revision on trial makes way only for the one before it: its files would be gone."""
    before = code.previous.digest if code.previous else None
    return code.proven or (spec.code is not None and code.previous is not None and spec.code.digest == before)


def _prove(seen: Seen, status: api.Status) -> api.CodeStatus:
    """The code in force, which is proven by its first step; of a script that reports none, by running for a while."""
    code, world = status.code or api.CodeStatus(), status.rendezvous
    if code.proven or (world.revision or 0) != code.revision or not world.world_size:
        return code
    end = _find_end(status)
    is_old = end is not None and seen.now >= end
    if seen.step_of(world.generation) is None and not is_old:
        return code
    return code.model_copy(update={"proven": True})


def _find_end(status: api.Status) -> float | None:
    """When a world has run for long enough without a step; None if none was formed."""
    formed = parse_time(status.rendezvous.formed_time)
    return None if formed is None else formed + (TRIAL_SECONDS if status.progress is None else SILENT_SECONDS)


def due_at(status: api.Status, now: float) -> float | None:
    """When a revision on trial, of a script that reports no steps, has run for long enough."""
    at = None if status.code is None or status.code.proven else _find_end(status)
    return at if at is not None and at > now else None


def is_on_trial(status: api.Status) -> bool:
    """Whether the world runs a revision that has made no step yet, and there is one to go back to."""
    code = status.code
    return (
        code is not None
        and not code.proven
        and code.previous is not None
        and (status.rendezvous.revision or 0) == code.revision
    )


def go_back(before: api.Status, charged: api.Status, told: str, now: float) -> api.Status:
    """The status in which the revision before is in force again. `charged`: the same as `before`, with the failure."""
    code = charged.code
    assert code is not None and code.previous is not None, "only a revision on trial is taken back"
    failed = api.CodeRevision(revision=code.revision, digest=code.digest, message=told[:_MOST_TEXT])
    code = api.CodeStatus(
        revision=code.previous.revision, digest=code.previous.digest, time=format_time(now), failed=failed
    )
    free = before.restarts
    restarts = revise(
        charged.restarts,
        user=free.user,
        stuck=budget.count_stuck(free),
        error=free.error,
        alike=free.alike,
        backoff=free.backoff,
    )
    return revise(charged, code=code, restarts=restarts)


def code_of(status: api.Status) -> wire.Code | None:
    """What agents are told of the code."""
    code = status.code
    return None if code is None or not code.revision else wire.Code(revision=code.revision, digest=code.digest or "")


def note(seen: Seen, spec: api.Spec, status: api.Status) -> api.Status:
    """The status with the condition that tells how the last update went."""
    if status.code is None and not is_asked(spec, status) and status.condition(CONDITION) is None:
        return status
    truth, reason, message = _describe(seen, spec, status)
    return revise(
        status, conditions=reporting.with_condition(status.conditions, CONDITION, truth, reason, message, seen.now)
    )


def _describe(seen: Seen, spec: api.Spec, status: api.Status) -> tuple[bool | None, str, str]:
    code = status.code or api.CodeStatus()
    if is_asked(spec, status) and spec.code is not None:
        wanted = spec.code.revision
        if not _may_change(spec, code):
            return False, AWAITED, f"revision {wanted} waits until revision {code.revision} has made its first step"
        return False, AWAITED, f"revision {wanted} waits for {_list(_find_unready(seen, spec, status))}"
    lacking = _find_lacking(seen, code)
    if lacking:
        return False, AWAITED, f"revision {code.revision} is in force, and has not come to {_list(lacking)}"
    if code.failed is not None:
        failed = f"revision {code.failed.revision} failed before its first step"
        return False, WENT_BACK, f"{failed}, so that revision {code.revision} runs again: {code.failed.message or ''}"
    if not code.proven:
        return None, STARTING, f"revision {code.revision} is in force, and has made no step yet"
    return True, UPDATED, f"revision {code.revision} is in force"


def _find_lacking(seen: Seen, code: api.CodeStatus) -> list[str]:
    """Pods that are ready and cannot join, for want of the code in force."""
    ready = [(uid, a) for uid, a in seen.agents.items() if a.connected and a.state.phase is wire.AgentPhase.READY]
    return [agent.pod for uid, agent in ready if code.revision and not _has(seen, uid, code.digest)]


def _list(pods: list[str]) -> str:
    if not pods:
        return "its pods"
    who = f"{pods[0]} and {len(pods) - 1} more" if len(pods) > 1 else pods[0]
    return (
        f"{who}: kubelets bring it within about two minutes, to pods that were created with a runtime that knows "
        "updates"
    )


def find_events(before: api.Status, after: api.Status) -> tuple[reporting.Event, ...]:
    """What is new about the code."""
    old, new = before.condition(CONDITION), after.condition(CONDITION)
    if new is None or (old is not None and (old.reason, old.message) == (new.reason, new.message)):
        return ()
    if new.reason == AWAITED and old is not None and old.reason == AWAITED:
        return ()  # fewer pods have to get it
    return (reporting.Event(new.reason, new.message, warning=new.reason == WENT_BACK),)
