"""Members that repeatedly become ready without a failure: free a few times, then charged; never a tight loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from controller.builders import NOW, make_agent, make_job, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.membership.member_health import MemberHealth, MemberVerdict, Situation, Worker
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.plan import flapping
from elasticjob_operator.plan.plan import Plan, Seen, plan
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import format_time

SPEC = make_spec(1, 2, replicas=2, elasticPolicy={"maxRestarts": 3})


def start(spec: api.Spec = SPEC) -> api.Status:
    return api.Status(rendezvous=make_world(), template_hash=spec.template_hash, start_time="2026-01-01T00:00:00Z")


def look(status: api.Status, agents: Mapping[str, Agent], now: float, spec: api.Spec = SPEC) -> Plan:
    pods = tuple(make_pod(i) for i in (0, 1))
    return plan(Seen(make_job(spec, status), pods, agents, now=now, hub_started=NOW - 1000))


def flap(status: api.Status, now: float) -> Plan:
    """Both members are ready again at once, each time with another store; pod 1 was first."""
    generation = status.rendezvous.generation
    agents = {
        f"u{i}": make_agent(i, generation=generation, port=1000 + generation, state_since=now - 0.1 * i) for i in (0, 1)
    }
    return look(status, agents, now)


def test_a_member_that_does_nothing_else_forms_no_world_after_another() -> None:
    status, now, ended = start(), NOW, NOW + 3600.0
    told: list[str] = []
    while now < ended and not status.finished:
        made = flap(status, now)
        told += [event.message for event in made.events if event.reason == "WorkerFailed"]
        now = now + 0.05 if made.announces else max(now + 0.05, made.wake_at or 0.0)
        status = made.status
    assert status.rendezvous.generation < 12
    assert status.restarts.total == 4
    failed = status.condition("Failed")
    assert failed is not None
    assert failed.reason == "MaxRestartsExceeded"
    assert "digits-worker-1" in failed.message, "it left first"
    assert all("[LeftWorld]: it repeatedly left the world" in message for message in told)
    assert status.last_failure is not None
    assert status.last_failure.reason == "LeftWorld"


def test_it_waits_whatever_progress_is_reported() -> None:
    """Progress gives the budget back, but not worlds without end."""
    status, now = start(make_spec(1, 2, replicas=2, elasticPolicy={"maxRestarts": 1000})), NOW
    while now < NOW + 600.0:
        made = flap(status, now)
        status = made.status.model_copy(
            update={"restarts": made.status.restarts.model_copy(update={"user": 0, "window_start": None})}
        )
        now += 0.5
    assert status.rendezvous.generation <= 1 + flapping.FREE + 1 + 600 / flapping.SECONDS


def test_now_and_then_is_free() -> None:
    status, now = start(), NOW
    for _ in range(50):
        made = flap(status, now)
        assert made.announces
        status, now = made.status, now + flapping.SECONDS
    assert status.restarts.total == 0


def test_a_world_that_an_update_of_the_code_has_ended_left_for_a_reason() -> None:
    """However many updates follow each other: nobody is charged, and none waits."""
    status, now = start(), NOW
    for revision in range(1, 20):
        code = api.CodeStatus(revision=revision, time=format_time(now), proven=True)
        made = flap(status.model_copy(update={"code": code}), now)
        assert made.announces, f"update {revision} forms its world at once"
        assert made.status.rendezvous.revision == revision
        status, now = made.status, now + 1.0
    assert status.restarts.total == 0
    assert status.restarts.unasked_until is None


def test_a_wait_for_others_is_one_time() -> None:
    status, now = start(make_spec(2, 2)), NOW
    agents = {"u1": make_agent(1, generation=1), "u0": make_agent(0, generation=1, lost_by="closed", since=NOW)}
    agents["u0"] = replace(agents["u0"], connected=True, lost_by="", state=agents["u0"].state)
    first = flap(status, now).status.restarts
    again = flapping.note(first, 1, now)[0]
    assert first.generation == 1
    assert first.unasked_until != again.unasked_until, "a second one counts more ..."
    waiting = status.model_copy(update={"restarts": first})
    assert look(waiting, agents, now).status.restarts == first, "... but a world is counted once"


@pytest.mark.parametrize(
    ("health", "changes", "others", "wanted", "replaced", "expected"),
    [
        pytest.param(MemberHealth.STOPPED, {}, {}, 2, (), "digits-worker-1", id="left for nothing"),
        pytest.param(MemberHealth.STOPPING, {}, {}, 2, (), None, id="not all are out yet"),
        pytest.param(MemberHealth.LOST, {}, {}, 2, (), None, id="one is lost"),
        pytest.param(MemberHealth.STOPPED, {"leaving": "drain"}, {}, 2, (), None, id="one was to go"),
        pytest.param(MemberHealth.STOPPED, {}, {2: make_agent(2)}, 3, (), None, id="a newcomer waits"),
        pytest.param(MemberHealth.STOPPED, {}, {2: make_agent(2)}, 2, (), "digits-worker-1", id="a spare waits"),
        pytest.param(MemberHealth.STOPPED, {}, {2: make_agent(2)}, 2, (0,), None, id="a spare is to replace one"),
        pytest.param(MemberHealth.STOPPED, {}, {}, 2, (0,), "digits-worker-1", id="no spare is there to replace one"),
    ],
)
def test_who_left_first(
    health: MemberHealth,
    changes: dict[str, str],
    others: dict[int, Agent],
    wanted: int,
    replaced: Sequence[int],
    expected: str | None,
) -> None:
    agents = {i: make_agent(i, generation=1, state_since=NOW - i) for i in (0, 1)} | others
    workers = tuple(Worker(make_pod(i), agent, replaced=i in replaced) for i, agent in agents.items())
    members = make_world().members
    verdicts = [
        MemberVerdict(members[0], MemberHealth.STOPPED, workers[0]),
        MemberVerdict(members[1].model_copy(update=changes), health, workers[1]),
    ]
    situation = Situation(make_world(), workers, Sizes(1, wanted), NOW)
    first = flapping.find_first(situation, start(), verdicts)
    assert (first.member.pod if first else None) == expected


def test_a_clock_that_was_set_back_holds_nobody() -> None:
    restarts = api.RestartStatus()
    for _ in range(10):
        restarts, is_free = flapping.note(restarts, 1, NOW)
    assert not is_free
    assert flapping.hold_until(restarts, NOW) == NOW + flapping.SECONDS
    assert flapping.hold_until(restarts, NOW - 86400) <= 0
