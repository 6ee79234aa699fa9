"""Updates of a job's code: when a revision comes into force, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_job, make_node, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import health_watch
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.plan.plan import Plan, Seen, plan
from elasticjob_operator.times import format_time

OLD, NEW = "1" * 64, "2" * 64
FIRST = api.CodeStatus(revision=1, digest=OLD)
TRIAL = api.CodeStatus(
    revision=2, digest=NEW, proven=False, previous=api.CodeRevision(revision=1, digest=OLD), time=format_time(NOW - 40)
)
BROKEN = {"failure": wire.Failure(generation=1, rank=0, exit_code=1, message="ValueError: a mistake")}


def agents(*codes: tuple[str, ...], phase: str = "running", **said: Any) -> dict[str, Agent]:
    told = [{"codes": code, **said} for code in codes]
    return {f"u{i}": make_agent(i, phase, 1, said=one) for i, one in enumerate(told)}


def look(
    found: dict[str, Agent],
    code: api.CodeStatus | None = None,
    *,
    asked: dict[str, Any] | None = None,
    world: api.RendezvousStatus | None = None,
    **more: Any,
) -> Plan:
    fields: dict[str, Any] = {**({"code": asked} if asked else {}), **more.pop("spec", {})}
    spec = make_spec(2, 2, **fields)
    ran = code.revision or None if code else None
    status = api.Status(
        start_time=format_time(NOW - 500),
        observed_generation=1,
        template_hash=spec.template_hash,
        rendezvous=world or make_world(1, (0, 1), revision=ran),
        code=code,
        **more,
    )
    pods = tuple(make_pod(i) for i in range(2))
    nodes = {pod.node: make_node(pod.node) for pod in pods}
    return plan(Seen(make_job(spec, status), pods, found, nodes=nodes, now=NOW, hub_started=NOW - 1000))


def told(made: Plan) -> tuple[str, str]:
    found = made.status.condition("CodeUpdated")
    return (found.status, found.reason) if found else ("", "")


ASKED = {"revision": 2, "digest": NEW}


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        pytest.param(((OLD, NEW), (NEW,)), "CodeStarting", id="all-have-it"),
        pytest.param(((OLD, NEW), (OLD,)), "CodeAwaited", id="one-has-not-got-it-yet"),
        pytest.param(((OLD, NEW), ()), "CodeAwaited", id="one-never-gets-any"),
    ],
)
def test_a_revision_comes_into_force_when_each_member_has_it(codes: tuple[Any, ...], reason: str) -> None:
    made = look(agents(*codes), FIRST, asked=ASKED)
    assert told(made)[1] == reason
    directive = made.directives["u0"]
    if reason == "CodeAwaited":
        assert directive.action == "world" and "digits-worker-1" in str(made.status.condition("CodeUpdated"))
        assert made.status.code == FIRST
        return
    assert isinstance(directive, wire.Regroup)
    assert (directive.reason, directive.checkpoint, directive.fresh) == ("update", True, True)
    assert directive.code == wire.Code(revision=2, digest=NEW)
    assert made.status.code is not None and made.status.code.previous == api.CodeRevision(revision=1, digest=OLD)
    assert [event.reason for event in made.events] == ["CodeStarting"]


@pytest.mark.parametrize(
    ("code", "asked", "is_taken"),
    [
        pytest.param(FIRST, {"revision": 1, "digest": NEW}, False, id="not-a-new-number"),
        pytest.param(FIRST, {"revision": 2, "digest": NEW}, True, id="a-new-number"),
        pytest.param(FIRST, {"revision": 2}, True, id="what-it-was-submitted-with"),
        pytest.param(None, {"revision": 1, "digest": NEW}, True, id="the-first-update"),
        pytest.param(None, None, False, id="none"),
        pytest.param(TRIAL, {"revision": 3, "digest": "3" * 64}, False, id="one-on-trial-makes-no-way"),
        pytest.param(TRIAL, {"revision": 3, "digest": OLD}, True, id="but-for-the-one-before"),
        pytest.param(
            FIRST.model_copy(update={"failed": api.CodeRevision(revision=2, digest=NEW)}),
            {"revision": 2, "digest": NEW},
            False,
            id="one-that-failed-is-not-tried-again",
        ),
    ],
)
def test_which_revisions_are_taken(code: api.CodeStatus | None, asked: dict[str, Any] | None, is_taken: bool) -> None:
    every = (OLD, NEW, "3" * 64)
    made = look(agents(every, every), code, asked=asked)
    assert (made.directives["u0"].action == "regroup") is is_taken
    if is_taken:
        assert made.status.code is not None and asked is not None
        assert (made.status.code.revision, made.status.code.digest) == (asked["revision"], asked.get("digest"))


def test_where_no_world_trains_nobody_is_waited_for_who_is_gone() -> None:
    found = {"u0": make_agent(0, "ready", 1, said={"codes": (NEW,)})}
    world = make_world(1, (0, 1)).model_copy(update={"world_size": 0})
    made = look(found, None, asked={"revision": 1, "digest": NEW}, world=world)
    assert made.status.code is not None and made.status.code.revision == 1


def test_what_the_old_code_has_failed_at_is_not_counted_against_the_new() -> None:
    """Two restarts at the same step, and then code that is to mend it: its first failure is not the third one."""
    restarts = api.RestartStatus(user=2, total=2, stuck=2, alike=2, step=812, error="E at a.py:1")
    made = look(agents((OLD, NEW), (OLD, NEW)), FIRST, asked=ASKED, restarts=restarts)
    after = made.status.restarts
    assert (after.stuck, after.alike, after.error, after.step) == (0, 0, None, 812)
    assert (after.user, after.total) == (2, 2), "the budget is that of the job"
    spec = make_spec(health={"rules": [{"name": "Stuck", "when": {"noProgress": 1}}]})
    assert health_watch.find(spec, api.Status(restarts=after), {}, NOW) == {}


@pytest.mark.parametrize("code", [None, FIRST])
def test_an_update_of_a_suspended_job_is_told(code: api.CodeStatus | None) -> None:
    gone = api.RendezvousStatus(generation=3)
    made = look({}, code, asked=ASKED, world=gone, spec={"runPolicy": {"suspend": True}})
    assert told(made) == ("False", "CodeAwaited")
    assert [event.reason for event in made.events].count("CodeAwaited") == 1
    condition = made.status.condition("CodeUpdated")
    assert condition is not None and condition.message == "revision 2 waits for its pods"
    made = look({}, code, world=gone, spec={"runPolicy": {"suspend": True}})
    assert told(made) == (("True", "CodeUpdated") if code else ("", ""))


def test_a_revision_that_no_pod_has_keeps_no_job_from_starting() -> None:
    """As where the manifest of a job that was updated is applied in another cluster."""
    asked, nowhere = {"revision": 7, "digest": NEW}, api.RendezvousStatus()
    assert look({}, asked=asked, world=nowhere).status.code is None
    found = {f"u{i}": make_agent(i, "ready", 0, said={"codes": ()}) for i in range(2)}
    made = look(found, asked=asked, world=nowhere)
    world = made.directives["u0"]
    assert isinstance(world, wire.World) and world.code is None
    assert told(made) == ("False", "CodeAwaited")


def test_another_launcher_takes_no_update() -> None:
    made = look(agents((NEW,), (NEW,)), asked=ASKED, spec={"rendezvous": {"backend": "c10d"}})
    assert made.status.code is None
    assert told(made) == ("False", "CodeAwaited")


def test_the_first_step_ends_the_trial() -> None:
    found = agents((NEW,), (NEW,))
    found["u0"] = replace(found["u0"], progress=wire.Progress(generation=1, rank=0, step=7), progress_since=NOW)
    made = look(found, TRIAL, asked=ASKED)
    assert made.status.code is not None and made.status.code.proven
    assert told(made) == ("True", "CodeUpdated")
    assert told(look(agents((NEW,), (NEW,)), TRIAL, asked=ASKED)) == ("Unknown", "CodeStarting")


@pytest.mark.parametrize("age", [30, 600])
def test_a_script_that_reports_no_steps_is_on_trial_for_a_while(age: float) -> None:
    world = make_world(1, (0, 1), revision=2, formed_time=format_time(NOW - age))
    made = look(agents((NEW,), (NEW,)), TRIAL, asked=ASKED, world=world)
    assert made.status.code is not None and made.status.code.proven is (age == 600)
    assert age == 600 or (made.wake_at is not None and made.wake_at <= NOW + 600)


@pytest.mark.parametrize("age", [3590, 3600])
def test_code_that_reports_no_more_steps_is_on_trial_for_an_hour(age: float) -> None:
    """The code before it did, so this one may be about to: its first step may take that long."""
    world = make_world(1, (0, 1), revision=2, formed_time=format_time(NOW - age))
    progress = api.ProgressStatus(step=812, last_update_time=format_time(NOW - 4000))
    made = look(agents((NEW,), (NEW,)), TRIAL, asked=ASKED, world=world, progress=progress)
    assert made.status.code is not None and made.status.code.proven is (age == 3600)
    assert age == 3600 or (made.wake_at is not None and made.wake_at <= NOW + 10)


def test_one_that_fails_on_trial_makes_way_for_the_one_before_and_costs_nothing() -> None:
    made = look(agents((OLD, NEW), (OLD, NEW), phase="ready", **BROKEN), TRIAL, asked=ASKED)
    code = made.status.code
    assert code is not None and (code.revision, code.digest, code.proven) == (1, OLD, True)
    assert code.failed is not None and code.failed.revision == 2 and "a mistake" in str(code.failed.message)
    assert (made.status.restarts.user, made.status.restarts.total) == (0, 1)
    assert told(made) == ("False", "CodeWentBack")
    assert [event.warning for event in made.events if event.reason == "CodeWentBack"] == [True]
    world = made.directives["u0"]
    assert isinstance(world, wire.World) and world.code == wire.Code(revision=1, digest=OLD)
    assert made.status.rendezvous.revision == 1 and made.status.timeline[-1].revision == 1
    again = look(agents((OLD, NEW), (OLD, NEW)), code, asked=ASKED)
    assert again.directives["u0"].action == "world", "it is not tried again"


def test_a_failure_of_a_proven_revision_is_a_failure_like_any_other() -> None:
    made = look(agents((OLD,), (OLD,), phase="ready", **BROKEN), FIRST)
    assert made.status.restarts.user == 1
    assert made.status.code is not None and made.status.code.revision == 1


def test_a_pod_that_cannot_run_the_code_does_not_join() -> None:
    found = agents((OLD,), ())
    found["u1"] = make_agent(1, "ready", 0, said={"codes": ()})
    made = look(found, FIRST, world=make_world(1, (0,), revision=1), spec={"elasticPolicy": {"minReplicas": 1}})
    assert made.directives["u0"].action == "world"
    assert told(made) == ("False", "CodeAwaited") and "digits-worker-1" in str(made.status.condition("CodeUpdated"))
    found["u1"] = make_agent(1, "ready", 0, said={"codes": (OLD,)})
    made = look(found, FIRST, world=make_world(1, (0,), revision=1), spec={"elasticPolicy": {"minReplicas": 1}})
    assert made.directives["u0"].action == "regroup"
