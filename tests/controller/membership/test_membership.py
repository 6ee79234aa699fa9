"""Tables for `member_health.judge` and `membership.decide`: one case per rule, exact results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_pod, make_situation, make_worker, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.membership import directives
from elasticjob_operator.membership.decide import State, decide
from elasticjob_operator.membership.member_health import MemberHealth, Situation, Worker, judge
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.sizing.legal import Sizes
from elasticjob_operator.times import format_time

FAILED = {"failure": wire.Failure(generation=1, exit_code=1, message="boom")}

UNSAID = "its pod ended with exit code 0, but its agent did not say that its workers succeeded"
LEFT_WORD = Exit(0, message="what the script wrote\n\nelasticjob: succeeded in generation 1\n")


def running(*indices: int, generation: int = 1, **fields: Any) -> tuple[Worker, ...]:
    return tuple(make_worker(i, "running", generation, **fields) for i in indices)


def worker(index: int = 1, **fields: Any) -> Worker:
    """Member 1 of a world of two; `pod` and `agent` as keyword arguments of their builders."""
    agent = fields.pop("agent", {"phase": "running", "generation": 1})
    return Worker(
        make_pod(index, **fields.pop("pod", {})), None if agent is None else make_agent(index, **agent), **fields
    )


def have_shards(shards: dict[int, tuple[int, ...]]) -> tuple[Worker, ...]:
    """Survivors of a world, with the shards of a model that each has in memory."""
    return tuple(make_worker(i, "ready", 1, said={"shards": held}) for i, held in shards.items())


QUIET = tuple(make_worker(i, "running", 1, said={"quiet": 1}) for i in range(2))
BLOCKED = tuple(make_worker(i, "stopping", 1, state_since=NOW - 1, said={"blocked": True}) for i in range(2))
SLOW = make_worker(1, "running", 1, replaced=True)
SLOW_READY = make_worker(1, "ready", 1, replaced=True)
EVEN = Sizes(min=2, wanted=4, step=2)
LATE = format_time(NOW - 100)
LATELY = format_time(NOW - 10)


@pytest.mark.parametrize(
    ("member", "health", "why"),
    [
        pytest.param(worker(), MemberHealth.RUNNING, "", id="runs"),
        pytest.param(
            worker(agent={"phase": "leaving", "generation": 1}), MemberHealth.RUNNING, "", id="leaving-trains-on"
        ),
        pytest.param(
            worker(agent={"phase": "ready"}), MemberHealth.STARTING, "it has not started yet", id="not-started"
        ),
        pytest.param(
            worker(agent={"phase": "ready", "said": {"checkpoint": wire.Checkpoint(restoring=True)}}),
            MemberHealth.STARTING,
            "it gets the checkpoint to begin with",
            id="restores",
        ),
        pytest.param(worker(agent={"phase": "starting"}), MemberHealth.STARTING, "it has not started yet", id="boots"),
        pytest.param(
            worker(agent={"phase": "ready", "generation": 1}),
            MemberHealth.STOPPED,
            "its workers stopped",
            id="stopped",
        ),
        pytest.param(
            worker(agent={"phase": "stopping", "generation": 1, "state_since": NOW - 1}),
            MemberHealth.STOPPING,
            "its workers are stopping",
            id="stopping",
        ),
        pytest.param(
            worker(agent={"phase": "stopping", "generation": 1, "state_since": NOW - 46}),
            MemberHealth.LOST,
            "it did not stop its workers",
            id="stops-for-ever",
        ),
        pytest.param(
            worker(agent={"phase": "succeeded", "generation": 1}), MemberHealth.SUCCEEDED, "", id="said-it-succeeded"
        ),
        pytest.param(
            worker(pod={"phase": "Succeeded"}, agent={"phase": "running", "generation": 1, "lost_by": "closed"}),
            MemberHealth.LOST,
            UNSAID,
            id="ended-with-code-0-while-it-ran",
        ),
        pytest.param(worker(pod={"phase": "Succeeded"}, agent=None), MemberHealth.LOST, UNSAID, id="ended-unheard"),
        pytest.param(
            worker(pod={"phase": "Succeeded", "exit": LEFT_WORD}, agent=None),
            MemberHealth.SUCCEEDED,
            "",
            id="left-word-unheard",
        ),
        pytest.param(
            worker(
                pod={"phase": "Succeeded", "exit": LEFT_WORD},
                agent={"phase": "running", "generation": 1, "lost_by": "closed"},
            ),
            MemberHealth.SUCCEEDED,
            "",
            id="left-word-while-it-was-cut-off",
        ),
        pytest.param(
            worker(pod={"phase": "Succeeded", "exit": Exit(0, message="elasticjob: succeeded in generation 2")}),
            MemberHealth.LOST,
            UNSAID,
            id="left-word-of-another-world",
        ),
        pytest.param(
            worker(pod={"phase": "Succeeded"}, agent={"phase": "leaving", "generation": 1, "lost_by": "closed"}),
            MemberHealth.LOST,
            UNSAID,
            id="left-with-exit-code-0",
        ),
        pytest.param(
            worker(pod={"phase": "Succeeded", "deleting": NOW + 5}, agent=None),
            MemberHealth.LOST,
            UNSAID,
            id="deleted-with-exit-code-0",
        ),
        pytest.param(
            worker(pod={"phase": "Failed", "exit": Exit(3)}),
            MemberHealth.LOST,
            "its pod ended with exit code 3",
            id="pod-failed",
        ),
        pytest.param(
            worker(pod={"phase": "Failed", "reason": "Evicted"}),
            MemberHealth.LOST,
            "its pod ended (Evicted)",
            id="evicted",
        ),
        pytest.param(
            worker(agent={"phase": "failed", "generation": 1}), MemberHealth.LOST, "its agent gave up", id="gave-up"
        ),
        pytest.param(
            worker(agent={"phase": "running", "generation": 1, "lost_by": "closed", "since": NOW - 0.5}),
            MemberHealth.SUSPECT,
            "its connection closed",
            id="closed-a-moment-ago",
        ),
        pytest.param(
            worker(agent={"phase": "running", "generation": 1, "lost_by": "closed", "since": NOW - 1.5}),
            MemberHealth.LOST,
            "its connection closed and did not come back",
            id="closed",
        ),
        pytest.param(
            worker(agent={"phase": "running", "generation": 1, "lost_by": "closed", "since": NOW + 3600}),
            MemberHealth.LOST,
            "its connection closed and did not come back",
            id="closed-before-the-clock-was-set-back",
        ),
        pytest.param(
            worker(agent={"phase": "running", "generation": 1, "lost_by": "silent", "since": NOW}),
            MemberHealth.LOST,
            "its agent stopped responding",
            id="silent",
        ),
        pytest.param(
            worker(
                pod={"deleting": NOW + 30},
                agent={"phase": "leaving", "generation": 1, "lost_by": "closed", "since": NOW},
            ),
            MemberHealth.LOST,
            "its pod is being deleted and its connection closed",
            id="deleted-and-closed",
        ),
        pytest.param(
            worker(agent=None),
            MemberHealth.LOST,
            "its agent has not connected since the operator started",
            id="never-heard-of",
        ),
        pytest.param(None, MemberHealth.LOST, "its pod is gone", id="gone"),
    ],
)
def test_how_a_member_stands(member: Worker | None, health: MemberHealth, why: str) -> None:
    others = (make_worker(0, "running", 1),)
    workers = others if member is None else (*others, member)
    verdicts = judge(make_situation(make_world(formed_time=format_time(NOW - 10)), workers))
    assert (verdicts[1].health, verdicts[1].why) == (health, why)


def test_an_operator_that_just_started_waits_for_agents() -> None:
    workers = (make_worker(0, "running", 1), worker(agent=None))
    verdicts = judge(make_situation(make_world(), workers, hub_started=NOW - 5))
    assert (verdicts[1].health, verdicts[1].until) == (MemberHealth.SUSPECT, NOW + 5)


def test_where_nobody_answers_nobody_is_lost() -> None:
    silent = {"phase": "running", "generation": 1, "lost_by": "silent"}
    workers = (worker(0, agent=silent), worker(1, agent=silent))
    situation = make_situation(make_world(), workers)
    assert [j.health for j in judge(situation)] == [MemberHealth.SUSPECT, MemberHealth.SUSPECT]
    assert decide(situation).state is State.RUNNING


RUNS, WAITS = {"phase": "running"}, {"phase": "running", "said": {"blocked": True}}
STOPS, STOPPED = {"phase": "stopping", "state_since": NOW - 1}, {"phase": "ready"}
MUTE = {"phase": "running", "mute": True}
ALIVE, LOST = MemberHealth.RUNNING, MemberHealth.LOST


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        pytest.param((WAITS, MUTE, WAITS), LOST, id="all-others-wait"),
        pytest.param((RUNS, MUTE, WAITS), ALIVE, id="one-other-makes-steps"),
        pytest.param((RUNS, MUTE, RUNS), ALIVE, id="silent-while-the-steps-go-on"),
        pytest.param((WAITS, RUNS, WAITS), ALIVE, id="all-wait-and-it-answers"),
        pytest.param((MUTE, MUTE, MUTE), ALIVE, id="nobody-answers"),
        pytest.param((WAITS, MUTE, MUTE), LOST, id="two-are-silent"),
        pytest.param((STOPS, MUTE, STOPPED), LOST, id="the-others-have-left"),
        pytest.param((STOPS, MUTE, RUNS), ALIVE, id="one-has-left-and-one-makes-steps"),
        pytest.param((WAITS, STOPS | {"mute": True}, STOPPED), LOST, id="silent-while-it-stops"),
        pytest.param((WAITS, MUTE, {"phase": "succeeded"}), ALIVE, id="another-has-succeeded"),
        pytest.param((WAITS, MUTE, RUNS | {"lost_by": "closed", "since": NOW}), ALIVE, id="another-may-reconnect"),
        pytest.param((WAITS, MUTE, RUNS | {"lost_by": "silent", "since": NOW}), LOST, id="another-is-lost"),
        pytest.param((MUTE, MUTE, RUNS | {"lost_by": "silent", "since": NOW}), ALIVE, id="nobody-is-left-to-say-it"),
    ],
)
def test_silence_is_a_loss_where_the_others_wait_for_it(
    agents: tuple[dict[str, Any], ...], expected: MemberHealth
) -> None:
    workers = tuple(make_worker(i, generation=1, **agent) for i, agent in enumerate(agents))
    assert judge(make_situation(make_world(members=(0, 1, 2)), workers))[1].health is expected


def test_the_world_goes_on_at_once_without_a_member_that_does_not_answer() -> None:
    """It is not waited for, and it is told in its connection, which it reads when it wakes."""
    mute = make_worker(1, "running", 1, mute=True)
    waiting = decide(make_situation(make_world(), (make_worker(0, "running", 1, said={"blocked": True}), mute)))
    assert (waiting.state, waiting.cause) == (State.REGROUPING, "lost")
    assert {uid: (d.action, d.checkpoint) for uid, d in waiting.directives.items() if isinstance(d, wire.Regroup)} == {
        "u0": ("regroup", False),
        "u1": ("regroup", False),
    }
    formed = decide(make_situation(make_world(), (make_worker(0, "ready", 1), mute), min=1))
    assert formed.world is not None and [m.uid for m in formed.world.members] == ["u0"]
    assert formed.directives["u1"] == wire.Regroup(generation=2, reason="fenced")


def test_a_closed_connection_is_a_loss_when_others_fail() -> None:
    closed = worker(1, agent={"phase": "running", "generation": 1, "lost_by": "closed", "since": NOW})
    failing = make_worker(0, "stopping", 1, state_since=NOW, said=FAILED)
    verdicts = judge(make_situation(make_world(), (failing, closed)))
    assert verdicts[1].health is MemberHealth.LOST


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        pytest.param(
            ["running", "ready", "running"], [MemberHealth.RUNNING, MemberHealth.LOST, MemberHealth.RUNNING], id="one"
        ),
        pytest.param(
            ["running", "ready", "ready"], [MemberHealth.LOST, MemberHealth.STOPPED, MemberHealth.STOPPED], id="most"
        ),
        pytest.param(
            ["ready", "ready", "ready"], [MemberHealth.LOST, MemberHealth.STOPPED, MemberHealth.STOPPED], id="all"
        ),
        pytest.param(["ready"], [MemberHealth.LOST], id="alone"),
    ],
)
def test_who_is_to_blame_when_members_do_not_start(phases: list[str], expected: list[MemberHealth]) -> None:
    workers = tuple(make_worker(i, p, 1 if p == "running" else 0) for i, p in enumerate(phases))
    world = make_world(members=tuple(range(len(phases))), formed_time=LATE)
    assert [j.health for j in judge(make_situation(world, workers))] == expected


def test_rank_0_with_another_store_cannot_start() -> None:
    workers = (make_worker(0, "ready", port=41000), make_worker(1, "ready"))
    verdicts = judge(make_situation(make_world(), workers))
    assert verdicts[0].why == "the store of this generation is gone"


# --- decide ----------------------------------------------------------------------------------------------


def say(directive: wire.Directive) -> str:
    saves = isinstance(directive, wire.Regroup) and directive.checkpoint
    return f"{directive.action}+checkpoint" if saves else directive.action


def outcome(situation: Situation) -> tuple[State, str, list[str], set[str]]:
    """(state, cause, members of a new world, actions told)."""
    made = decide(situation)
    members = [m.uid for m in made.world.members] if made.world else []
    told = {
        d.action + ("+checkpoint" if isinstance(d, wire.Regroup) and d.checkpoint else "")
        for d in made.directives.values()
    }
    return made.state, made.cause, members, told


READY = tuple(make_worker(i) for i in range(4))
GONE = api.RendezvousStatus()


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        pytest.param(
            make_situation(GONE, READY), (State.STARTING, "start", ["u0", "u1", "u2", "u3"], {"world"}), id="start-full"
        ),
        pytest.param(make_situation(GONE, READY[:1]), (State.WAITING, "start", [], set()), id="start-below-min"),
        pytest.param(
            make_situation(GONE, READY[:2]),
            (State.STARTING, "start", ["u0", "u1"], {"world"}),
            id="start-when-nobody-else-can-come",
        ),
        pytest.param(
            make_situation(GONE, tuple(make_worker(i, state_since=NOW - 1) for i in (0, 1)), missing=2),
            (State.WAITING, "start", [], set()),
            id="start-waits-for-those-on-their-way",
        ),
        pytest.param(
            make_situation(GONE, tuple(make_worker(i, state_since=NOW - 1) for i in range(4)), missing=1),
            (State.STARTING, "start", ["u0", "u1", "u2", "u3"], {"world"}),
            id="start-with-all-that-are-wanted-waits-for-no-spare",
        ),
        pytest.param(
            make_situation(GONE, READY[:2], missing=2),
            (State.STARTING, "start", ["u0", "u1"], {"world"}),
            id="start-waits-only-so-long",
        ),
        pytest.param(
            make_situation(GONE, READY, hold_until=NOW + 5), (State.WAITING, "start", [], set()), id="start-backs-off"
        ),
        pytest.param(
            make_situation(GONE, READY[:3], sizes=Sizes(2, 4, step=2)),
            (State.STARTING, "start", ["u0", "u1"], {"world"}),
            id="start-with-a-legal-size",
        ),
        pytest.param(make_situation(make_world(), running(0, 1)), (State.RUNNING, "", [], {"world"}), id="keep"),
        pytest.param(
            make_situation(make_world(), (*running(0, 1), make_worker(2))),
            (State.REGROUPING, "scale-up", [], {"regroup+checkpoint"}),
            id="grow",
        ),
        pytest.param(
            make_situation(make_world(), (*running(0, 1), make_worker(2, state_since=NOW - 1)), missing=1),
            (State.RUNNING, "", [], {"world"}),
            id="grow-waits-for-the-next-newcomer",
        ),
        pytest.param(
            make_situation(make_world(), (*running(0, 1), make_worker(2, held_until=NOW + 9))),
            (State.RUNNING, "", [], {"world"}),
            id="grow-is-held",
        ),
        pytest.param(
            make_situation(make_world(), (*running(0, 1), make_worker(2)), max=2),
            (State.RUNNING, "", [], {"world"}),
            id="spare-stays-outside",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "running", 1), SLOW), max=2),
            (State.RUNNING, "", [], {"world"}),
            id="a-slow-member-stays-while-nobody-can-take-its-place",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "running", 1), SLOW), min=1, max=2, missing=1),
            (State.RUNNING, "", [], {"world"}),
            id="the-world-does-not-shrink-for-a-slow-member",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "running", 1), SLOW, make_worker(2)), max=2),
            (State.REGROUPING, "straggler", [], {"regroup+checkpoint"}),
            id="a-spare-takes-the-place-of-a-slow-member",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "running", 1), SLOW, make_worker(2)), max=4),
            (State.REGROUPING, "scale-up", [], {"regroup+checkpoint"}),
            id="growth-comes-before-a-slow-member",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "ready", 1), SLOW_READY, make_worker(2)), max=2),
            (State.STARTING, "straggler", ["u0", "u2"], {"world"}),
            id="whoever-is-ready-comes-before-a-slow-survivor",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "ready", 1), SLOW_READY), max=2),
            (State.STARTING, "regroup", ["u0", "u1"], {"world"}),
            id="a-slow-survivor-goes-on-where-nobody-is-ready",
        ),
        pytest.param(
            make_situation(make_world(), (SLOW_READY, make_worker(2)), max=2),
            (State.STARTING, "lost", ["u1", "u2"], {"world"}),
            id="a-slow-survivor-that-alone-has-the-state-is-rank-0",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2, 3)), have_shards({0: (0, 3), 1: (1, 0), 2: (2, 1)}), sizes=EVEN
            ),
            (State.STARTING, "lost", ["u0", "u2"], {"world"}),
            id="survivors-with-the-only-copies-stay",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2, 3)), have_shards({0: (0,), 1: (1,), 2: (2,)}), sizes=EVEN),
            (State.STARTING, "lost", ["u0", "u1"], {"world"}),
            id="nobody-is-left-out-for-shards-that-are-lost",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2, 3, 4, 5, 6, 7)),
                have_shards({i: (i, (i - 1) % 8) for i in (0, 1, 2, 4, 5, 6, 7)}),
                sizes=Sizes(min=4, wanted=8, step=4),
            ),
            (State.STARTING, "lost", ["u0", "u2", "u4", "u6"], {"world"}),
            id="every-second-one-of-a-ring-is-enough",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2)), running(0, 1, 2), max=2),
            (State.REGROUPING, "scale-down", [], {"regroup+checkpoint"}),
            id="shrink",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2)), (*running(0, 1), make_worker(2, "running", 1, leaving="pod-deleted"))
            ),
            (State.REGROUPING, "pod-deleted", [], {"regroup+checkpoint"}),
            id="leave",
        ),
        pytest.param(
            make_situation(
                make_world(),
                (make_worker(0, "running", 1), make_worker(1, "running", 1, leaving="drain", patient=True)),
            ),
            (State.RUNNING, "", [], {"world"}),
            id="drain-at-min-is-patient",
        ),
        pytest.param(
            make_situation(
                make_world(),
                (
                    make_worker(0, "running", 1),
                    make_worker(1, "running", 1, leaving="drain", patient=True),
                    make_worker(2),
                ),
            ),
            (State.REGROUPING, "drain", [], {"regroup+checkpoint"}),
            id="drain-when-the-replacement-is-ready",
        ),
        pytest.param(
            make_situation(make_world(), QUIET),
            (State.REGROUPING, "hung", [], {"regroup"}),
            id="nobody-does-anything",
        ),
        pytest.param(
            make_situation(make_world(), (QUIET[0], make_worker(1, "running", 1))),
            (State.RUNNING, "", [], {"world"}),
            id="one-computes-while-the-other-waits",
        ),
        pytest.param(
            make_situation(make_world(2), tuple(make_worker(i, "running", 2, said={"quiet": 1}) for i in range(2))),
            (State.RUNNING, "", [], {"world"}),
            id="they-were-quiet-in-the-world-before",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2)), running(0, 1)),
            (State.REGROUPING, "lost", [], {"regroup"}),
            id="loss-saves-nothing",
        ),
        pytest.param(
            make_situation(make_world(), (BLOCKED[0], BLOCKED[1], make_worker(2))),
            (State.REGROUPING, "scale-up", [], {"regroup"}),
            id="all-are-blocked",
        ),
        pytest.param(
            make_situation(make_world(), (BLOCKED[0], make_worker(1, "ready", 1), make_worker(2))),
            (State.REGROUPING, "scale-up", [], {"regroup"}),
            id="one-is-blocked-and-the-other-has-ended",
        ),
        pytest.param(
            make_situation(
                make_world(), (BLOCKED[0], make_worker(1, "stopping", 1, state_since=NOW - 1), make_worker(2))
            ),
            (State.REGROUPING, "scale-up", [], {"regroup+checkpoint"}),
            id="one-is-blocked-and-the-other-saves",
        ),
        pytest.param(
            make_situation(make_world(), (BLOCKED[0], make_worker(1, "running", 1), make_worker(2))),
            (State.REGROUPING, "scale-up", [], {"regroup+checkpoint"}),
            id="one-is-blocked-and-the-other-has-not-heard",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2)), tuple(make_worker(i, "ready", 1) for i in (1, 2))),
            (State.STARTING, "lost", ["u1", "u2"], {"world"}),
            id="loss-of-rank-0-goes-on-when-all-stopped",
        ),
        pytest.param(
            make_situation(
                make_world(members=(1, 0)), (make_worker(0, "ready", 1), make_worker(1, "ready", 1), make_worker(2))
            ),
            (State.STARTING, "scale-up", ["u1", "u0", "u2"], {"world"}),
            id="survivors-keep-their-order",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "ready", 1, said=FAILED), make_worker(1, "running", 1))),
            (State.REGROUPING, "failed", [], {"regroup"}),
            id="failure-saves-nothing",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "ready", 1),)),
            (State.WAITING, "lost", [], set()),
            id="loss-below-min-waits",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2), formed_time=LATELY), READY[:2]),
            (State.REGROUPING, "lost", [], {"regroup"}),
            id="who-has-not-started-yet-may-be-about-to",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2), formed_time=LATELY), (make_worker(0, "ready", 1), make_worker(1))
            ),
            (State.REGROUPING, "lost", [], {"regroup"}),
            id="each-of-them-gives-it-up",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2), formed_time=LATELY), tuple(make_worker(i, "ready", 1) for i in (0, 1))
            ),
            (State.STARTING, "lost", ["u0", "u1"], {"world"}),
            id="who-gave-it-up-goes-on",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0, 1, 2), formed_time=LATELY),
                (make_worker(0, port=41000), make_worker(1, "ready", 1)),
            ),
            (State.STARTING, "lost", ["u0", "u1"], {"world"}),
            id="a-new-store-is-proof-too",
        ),
        pytest.param(
            make_situation(make_world(members=(0, 1, 2), formed_time=LATE), READY[:3]),
            (State.REGROUPING, "lost", [], {"regroup"}),
            id="late-ones-are-nobodys-proof",
        ),
        pytest.param(
            make_situation(
                make_world(members=(0,), formed_time=LATE),
                (
                    make_worker(0, "running", 1, leaving="drain", since=NOW - 100, state_since=NOW - 100),
                    make_worker(1),
                ),
                min=1,
                broken_since=NOW - 100,
            ),
            (State.WAITING, "drain", [], {"regroup"}),
            id="the-only-one-that-does-not-stop-is-waited-for",
        ),
        pytest.param(
            make_situation(
                make_world(), (make_worker(0, "succeeded", 1), make_worker(1, "running", 1), make_worker(2))
            ),
            (State.ENDING, "", [], {"world"}),
            id="success-freezes-the-world",
        ),
        pytest.param(
            make_situation(make_world(), (make_worker(0, "succeeded", 1), make_worker(1, "ready", 1))),
            (State.STARTING, "regroup", ["u1"], {"world"}),
            id="the-unfinished-run-again",
        ),
        pytest.param(
            make_situation(make_world(2, succeeded=["u9"], members=(0,)), (make_worker(0, "ready", 2),), min=2),
            (State.STARTING, "regroup", ["u0"], {"world"}),
            id="the-unfinished-need-no-min",
        ),
        pytest.param(
            make_situation(make_world(2), (*running(0, 1, generation=2), make_worker(2, "running", 1)), max=2),
            (State.RUNNING, "", [], {"world", "regroup"}),
            id="a-stale-agent-is-fenced",
        ),
    ],
)
def test_decide(situation: Situation, expected: tuple[State, str, list[str], set[str]]) -> None:
    assert outcome(situation) == expected


def test_a_lone_member_that_is_silent_blocks_the_next_world() -> None:
    silent = worker(0, agent={"phase": "running", "generation": 1, "lost_by": "silent"})
    situation = make_situation(make_world(members=(0,)), (silent, make_worker(1)), min=1)
    assert decide(situation).reason == "digits-worker-0 of the old world may still be training"
    gone = replace(situation, workers=(make_worker(1),))
    assert [m.uid for m in (decide(gone).world or GONE).members] == ["u1"]


def test_only_the_host_of_a_store_that_nobody_reaches_is_asked() -> None:
    world = make_world(members=(0, 1, 2), formed_time=LATE)
    blamed = make_situation(world, (make_worker(0, "running", 1), make_worker(1), make_worker(2)))
    assert set(decide(blamed).directives) == {"u0"}, "an answer of the others would be no blame any more"
    stopped = replace(blamed, workers=(make_worker(0, "ready", 1), *blamed.workers[1:]))
    made = decide(stopped)
    assert [m.uid for m in (made.world or GONE).members] == ["u1", "u2"]
    assert [j.member.uid for j in made.health(MemberHealth.LOST)] == ["u0"]


def test_a_member_that_missed_a_regroup_is_told_of_its_own_generation() -> None:
    workers = (*running(0, generation=3), make_worker(1, "running", 2))
    told = decide(make_situation(make_world(3, formed_time=format_time(NOW - 1)), workers)).directives
    assert isinstance(told["u1"], wire.Regroup)
    assert told["u1"].generation == 2


def test_the_new_world_is_complete() -> None:
    made = decide(make_situation(make_world(4, members=(1, 0)), tuple(make_worker(i, "ready", 4) for i in (0, 1))))
    assert made.world == api.RendezvousStatus(
        generation=5,
        world_size=2,
        processes=2,
        members=[
            api.Member(pod="digits-worker-1", uid="u1", node="node1", rank=0, address="10.0.0.1"),
            api.Member(pod="digits-worker-0", uid="u0", node="node0", rank=1, address="10.0.0.0"),
        ],
        store=api.StoreAddress(address="10.0.0.1", port=40001),
        formed_time=format_time(NOW),
        reason="regroup",
    )
    assert made.directives["u0"] == wire.World(
        generation=5,
        rank=1,
        members=(
            wire.Member(pod="digits-worker-1", rank=0, address="10.0.0.1"),
            wire.Member(pod="digits-worker-0", rank=1, address="10.0.0.0"),
        ),
        store=wire.Store(address="10.0.0.1", port=40001),
    )


def test_deciding_twice_gives_the_same() -> None:
    situation = make_situation(make_world(), (*running(0, 1), make_worker(2)))
    assert decide(situation) == decide(situation)


@pytest.mark.parametrize(
    ("phase", "connected", "served", "released"),
    [
        pytest.param("leaving", True, False, True, id="was asked to go"),
        pytest.param("leaving", True, True, False, id="the world goes on without it"),
        pytest.param("running", True, False, False, id="its pods were left alone on purpose"),
        pytest.param("leaving", False, False, False, id="does not hear"),
    ],
)
def test_agents_of_a_job_that_is_gone(phase: str, connected: bool, served: bool, released: bool) -> None:
    agent = make_agent(1, phase, 1, lost_by="" if connected else "closed")
    told = directives.release({agent.pod_uid: agent}, {agent.pod_uid} if served else ())
    assert told == ({agent.pod_uid: wire.Stop(reason="the job is gone", checkpoint=True)} if released else {})
