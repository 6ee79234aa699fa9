"""Tables for the rules: deadlines, departures, pods to remove, budget, blame, nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_node, make_pod, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import budget, classify, nodes
from elasticjob_operator.failures.classify import Blame, Failure, Verdict
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.model.observe import Agent, Node, Pod
from elasticjob_operator.plan import policy
from elasticjob_operator.plan.policy import Deadline, Departure
from elasticjob_operator.times import format_time


def ago(seconds: float) -> str:
    return format_time(NOW - seconds)


def stopped(since: str) -> api.Condition:
    return api.Condition(type="Running", status="False", last_transition_time=since)


def runs(since: str) -> api.Condition:
    return api.Condition(type="Running", status="True", last_transition_time=since)


@pytest.mark.parametrize(
    ("run_policy", "status", "expected"),
    [
        pytest.param({}, {}, Deadline(), id="none"),
        pytest.param({"activeDeadlineSeconds": 60}, {"start_time": None}, Deadline(), id="not-started"),
        pytest.param({"activeDeadlineSeconds": 60}, {"start_time": ago(50)}, Deadline(at=NOW + 10), id="active-later"),
        pytest.param(
            {"activeDeadlineSeconds": 60},
            {"start_time": ago(60)},
            Deadline("DeadlineExceeded", "runPolicy.activeDeadlineSeconds has passed"),
            id="active-passed",
        ),
        pytest.param(
            {"startupDeadlineSeconds": 60},
            {"start_time": ago(61)},
            Deadline("StartupDeadlineExceeded", "no world was formed within runPolicy.startupDeadlineSeconds"),
            id="startup-passed",
        ),
        pytest.param(
            {"startupDeadlineSeconds": 60},
            {"start_time": ago(61), "rendezvous": make_world()},
            Deadline(),
            id="startup-was-in-time",
        ),
        pytest.param(
            {"faultDeadlineSeconds": 60},
            {"start_time": ago(900), "goodput": api.GoodputStatus(since=ago(700)), "conditions": [stopped(ago(70))]},
            Deadline("FaultDeadlineExceeded", "the job has not trained for runPolicy.faultDeadlineSeconds"),
            id="fault-passed",
        ),
        pytest.param(
            {"faultDeadlineSeconds": 60},
            {"start_time": ago(900), "goodput": api.GoodputStatus(since=ago(700)), "conditions": [runs(ago(700))]},
            Deadline(),
            id="fault-mended",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 100, "startupDeadlineSeconds": 60},
            {"start_time": ago(10)},
            Deadline(at=NOW + 50),
            id="the-nearest",
        ),
    ],
)
def test_deadlines(run_policy: dict[str, Any], status: dict[str, Any], expected: Deadline) -> None:
    status = {"start_time": ago(1), **status}
    assert policy.check_deadlines(make_spec(runPolicy=run_policy), api.Status(**status), NOW) == expected


@pytest.mark.parametrize(
    ("pod", "node", "agent", "expected"),
    [
        pytest.param(make_pod(), make_node(), make_agent(), None, id="stays"),
        pytest.param(make_pod(deleting=NOW + 9), make_node(), None, Departure("pod-deleted"), id="deleted"),
        pytest.param(make_pod(disruption="Preempt"), make_node(), None, Departure("disruption"), id="disruption"),
        pytest.param(
            make_pod(), make_node(), make_agent(0, "leaving", 1), Departure("pod-leaving"), id="agent-got-sigterm"
        ),
        pytest.param(
            make_pod(), make_node(leaving="spot"), make_agent(), Departure("node-leaving", patient=True), id="taint"
        ),
        pytest.param(make_pod(), make_node(cordoned=True), None, Departure("drain", patient=True), id="cordon"),
        pytest.param(
            make_pod(sick_device="gpu 1"), make_node(), make_agent(), Departure("device", patient=True), id="device"
        ),
        pytest.param(make_pod(), None, make_agent(), None, id="node-unknown"),
    ],
)
def test_departures(pod: Pod, node: Node | None, agent: Agent | None, expected: Departure | None) -> None:
    assert policy.departure(pod, node, agent) == expected


SILENT = {"phase": "running", "generation": 1, "lost_by": "silent"}


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        pytest.param([("running", 1, {}), ("running", 1, {})], (set(), None), id="all-answer"),
        pytest.param(
            [("running", 1, {}), ("running", 1, {"lost_by": "silent", "since": NOW - 10})],
            (set(), NOW + 20),
            id="silent-for-a-while",
        ),
        pytest.param(
            [("running", 1, {}), ("running", 1, {"lost_by": "silent", "since": NOW - 30})], ({"u1"}, None), id="mute"
        ),
        pytest.param(
            [("running", 1, {"lost_by": "silent"}), ("running", 1, {"lost_by": "silent"})],
            (set(), None),
            id="nobody-answers",
        ),
        pytest.param([("running", 1, {}), None], ({"u1"}, None), id="member-never-heard-of"),
        pytest.param([("running", 1, {}), ("running", 1, {}), None], (set(), None), id="newcomer-never-heard-of"),
        pytest.param(
            [("running", 1, {}), ("running", 1, {}), ("running", 1, {"since": NOW - 200, "state_since": NOW - 200})],
            (set(), NOW - 40 + 60),
            id="outsider-still-runs-since-the-world-was-formed",
        ),
    ],
)
def test_mute_agents(agents: list[Any], expected: tuple[set[str], float | None]) -> None:
    pods = [make_pod(i) for i in range(len(agents))]
    known = {f"u{i}": make_agent(i, a[0], a[1], **a[2]) for i, a in enumerate(agents) if a}
    elastic = api.ElasticPolicy()
    found = policy.find_unresponsive(pods, known, make_world(), elastic=elastic, since=NOW - 100, now=NOW)
    assert found == (frozenset(expected[0]), expected[1])


@pytest.mark.parametrize(
    ("release", "agents", "fields", "expected"),
    [
        pytest.param(
            "own", [None, None], {}, (set(), None), id="its own, and nobody is heard: it is the operator's fault"
        ),
        pytest.param("", [None, None], {}, (set(), None), id="of an earlier version"),
        pytest.param("other", [None, None], {}, ({"u0", "u1"}, None), id="of another release"),
        pytest.param("other", [("running", 1), None], {}, ({"u1"}, None), id="of another release, and one is heard"),
        pytest.param("other", [("running", 1), ("running", 1)], {}, (set(), None), id="both follow this operator"),
        pytest.param("other", [("running", 1), ("running", 1), None], {}, ({"u2"}, None), id="one that is in no world"),
        pytest.param("other", [None, None], {"began": NOW - 10}, (set(), NOW + 20), id="they have just begun"),
        pytest.param("other", [None, None], {"started": False}, (set(), None), id="they have not begun"),
    ],
)
def test_pods_that_another_release_has_made(
    release: str, agents: list[Any], fields: dict[str, Any], expected: tuple[set[str], float | None]
) -> None:
    pods = [make_pod(i, release=release, **fields) for i in range(len(agents))]
    known = {f"u{i}": make_agent(i, a[0], a[1]) for i, a in enumerate(agents) if a}
    elastic = api.ElasticPolicy()
    found = policy.find_unresponsive(
        pods, known, make_world(), elastic=elastic, since=NOW - 100, now=NOW, release="own"
    )
    assert found == (frozenset(expected[0]), expected[1])
    assert policy.find_unresponsive(pods, known, make_world(), elastic=elastic, since=NOW, now=NOW)[0] == set()


@pytest.mark.parametrize(
    ("keep", "ranks", "expected"),
    [
        pytest.param(4, {}, {0, 1, 2, 3}, id="all"),
        pytest.param(2, {}, {0, 1}, id="highest-index-goes"),
        pytest.param(2, {"u2": 0, "u3": 1}, {2, 3}, id="members-stay"),
        pytest.param(1, {"u0": 2, "u1": 1, "u3": 0}, {3}, id="rank-0-goes-last"),
        pytest.param(0, {}, set(), id="none"),
    ],
)
def test_victims(keep: int, ranks: dict[str, int], expected: set[int]) -> None:
    kept = policy.choose_kept([make_pod(i) for i in range(4)], keep, ranks=ranks)
    assert kept == {f"u{i}" for i in expected}


ZONES = {0: ("a", "", "n0"), 1: ("b", "", "n1"), 2: ("a", "", "n0"), 3: ("b", "", "n3"), 4: ("a", "", "n4")}


@pytest.mark.parametrize(
    ("keep", "rank_0", "expected"),
    [
        pytest.param(5, 0, {0, 1, 2, 3, 4}, id="all"),
        pytest.param(4, 0, {0, 1, 2, 4}, id="of-the-smaller-zone-the-latest"),
        pytest.param(3, 0, {0, 2, 4}, id="a-whole-zone"),
        pytest.param(2, 0, {0, 2}, id="a-whole-zone-and-a-node"),
        pytest.param(3, 3, {0, 1, 3}, id="not-that-of-rank-0"),
        pytest.param(1, 2, {2}, id="rank-0-goes-last"),
    ],
)
def test_victims_free_whole_places(keep: int, rank_0: int, expected: set[int]) -> None:
    pods = [make_pod(i, node=place[-1]) for i, place in ZONES.items()]
    nodes = {place[-1]: make_node(place[-1], place=place) for place in ZONES.values()}
    ranks = {"u0": rank_0, f"u{rank_0}": 0} | {f"u{i}": i for i in range(1, 5) if i != rank_0}
    kept = policy.choose_kept(pods, keep, ranks=ranks, nodes=nodes)
    assert kept == {f"u{i}" for i in expected}
    one_by_one = pods
    for size in range(4, keep - 1, -1):
        left = policy.choose_kept(one_by_one, size, ranks=ranks, nodes=nodes)
        one_by_one = [pod for pod in one_by_one if pod.uid in left]
    assert {pod.uid for pod in one_by_one} == kept, "it does not matter in how many steps"


def test_who_is_outside_the_world_goes_before_any_place_is_freed() -> None:
    pods = [make_pod(i, node=place[-1]) for i, place in ZONES.items()]
    nodes = {place[-1]: make_node(place[-1], place=place) for place in ZONES.values()}
    ranks = {"u0": 0, "u1": 1, "u3": 2}
    assert policy.choose_kept(pods, 4, ranks=ranks, nodes=nodes) == {"u0", "u1", "u2", "u3"}
    assert policy.choose_kept(pods, 2, ranks=ranks, nodes=nodes) == {"u0", "u1"}


@pytest.mark.parametrize(
    ("staying", "keep", "expected"),
    [
        pytest.param(range(8), 4, {0, 1, 4, 5}, id="whole-copies"),
        pytest.param((1, 2, 3, 4, 5, 6, 7), 4, {2, 3, 6, 7}, id="the-whole-one"),
        pytest.param((0, 1, 2, 3, 4, 5, 6, 9), 5, {0, 1, 4, 5, 2}, id="who-is-outside-goes-first"),
    ],
)
def test_victims_free_whole_copies(staying: Sequence[int], keep: int, expected: set[int]) -> None:
    """Of a mesh of two stages, and pairs in each: 0, 1, 4 and 5 are a copy."""
    pods = [make_pod(i, node=f"n{i}") for i in staying]
    nodes = {f"n{i}": make_node(f"n{i}", place=(f"n{i}",)) for i in range(10)}
    layout = api.Layout(4, 2, 2)
    kept = policy.choose_kept(pods, keep, ranks={f"u{i}": i for i in range(8)}, nodes=nodes, layout=layout)
    assert kept == {f"u{i}" for i in expected}


def test_a_pod_without_room_goes_before_one_that_runs() -> None:
    pods = [make_pod(0), make_pod(1, "Pending", unschedulable=NOW), make_pod(2)]
    assert policy.choose_kept(pods, 2, ranks={}) == {"u0", "u2"}


@pytest.mark.parametrize(
    ("existing", "count", "limit", "expected"),
    [
        pytest.param([], 3, None, (0, 1, 2), id="first"),
        pytest.param([0, 2], 2, None, (1, 3), id="gaps"),
        pytest.param([0, 1], 0, None, (), id="none"),
        pytest.param([0], 2, 2, (1,), id="limited"),
    ],
)
def test_free_indices(existing: list[int], count: int, limit: int | None, expected: tuple[int, ...]) -> None:
    assert policy.free_indices([make_pod(i) for i in existing], count, limit=limit) == expected


# --- blame and rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "node", "blame"),
    [
        pytest.param(make_pod(0, "Failed", exit=Exit(1)), make_node(), Blame.USER, id="exit-1"),
        pytest.param(make_pod(0, "Failed", exit=Exit(139)), make_node(), Blame.USER, id="segfault"),
        pytest.param(make_pod(0, "Failed", exit=Exit(137)), make_node(), Blame.INFRASTRUCTURE, id="killed"),
        pytest.param(make_pod(0, "Failed", exit=Exit(143)), make_node(), Blame.INFRASTRUCTURE, id="terminated"),
        pytest.param(make_pod(0, "Failed", exit=Exit(137, "OOMKilled")), make_node(), Blame.USER, id="oom"),
        pytest.param(make_pod(0, "Failed", reason="Evicted"), make_node(), Blame.INFRASTRUCTURE, id="evicted"),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(1), disruption="x"), make_node(), Blame.INFRASTRUCTURE, id="disrupted"
        ),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(1), deleting=NOW), make_node(), Blame.INFRASTRUCTURE, id="deleted"
        ),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(255, "Unknown")), make_node(), Blame.INFRASTRUCTURE, id="node-booted-anew"
        ),
        pytest.param(make_pod(0, "Failed", exit=Exit(1)), None, Blame.INFRASTRUCTURE, id="node-gone"),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(1)), make_node(ready=False), Blame.INFRASTRUCTURE, id="node-not-ready"
        ),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(1)), make_node(problem="KernelDeadlock=True"), Blame.INFRASTRUCTURE,
            id="node-is-broken",
        ),
        pytest.param(
            make_pod(0, "Failed", exit=Exit(1), sick_device="gpu 1"), make_node(), Blame.INFRASTRUCTURE,
            id="device-is-broken",
        ),
    ],
)  # fmt: skip
def test_blame(pod: Pod, node: Node | None, blame: Blame) -> None:
    assert classify.blame_of_pod(pod, node) is blame


@pytest.mark.parametrize(
    ("template", "seconds", "writer", "words"),
    [
        pytest.param({"activeDeadlineSeconds": 60}, 60, "", "", id="the template's"),
        pytest.param({}, 60, "", "does not set it: an admission webhook or a policy does", id="a policy's"),
        pytest.param({}, 60, "reaper", "does not set it: 'reaper' does", id="a known writer's"),
        pytest.param(
            {"activeDeadlineSeconds": 3600}, 60, "", "sets 3600: an admission", id="a policy's, which is earlier"
        ),
    ],
)
def test_whose_deadline_has_ended_a_pod(template: dict[str, Any], seconds: int, writer: str, words: str) -> None:
    pod = make_pod(0, "Failed", reason=classify.POD_DEADLINE, deadline_seconds=seconds, deadline_writer=writer)
    is_foreign = classify.has_foreign_deadline(pod, {"spec": template})
    told = classify.tell_deadline(pod, {"spec": template}, "has passed for") if is_foreign else ""
    failure = classify.failure_of_pod(pod, make_node(), foreign_deadline=told)
    assert failure.is_cut is bool(words)
    assert failure.blame is (Blame.INFRASTRUCTURE if words else Blame.USER)
    assert words in failure.message


def rule(action: str, **matcher: Any) -> api.FailureRule:
    return api.FailureRule.model_validate({"action": action, **matcher})


IN_42 = {"onExitCodes": {"operator": "In", "values": [42]}}
NOT_IN_1 = {"onExitCodes": {"operator": "NotIn", "values": [1]}}
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("rules", "failure", "expected"),
    [
        pytest.param([], Failure("p", exit_code=1), Verdict.RESTART, id="default-user"),
        pytest.param([], Failure("p", blame=Blame.INFRASTRUCTURE), Verdict.RESTART_FREE, id="default-infrastructure"),
        pytest.param([], Failure("p", fatal=True), Verdict.FAIL, id="default-fatal"),
        pytest.param([rule("FailJob", **IN_42)], Failure("p", exit_code=42), Verdict.FAIL, id="in"),
        pytest.param([rule("FailJob", **IN_42)], Failure("p", exit_code=1), Verdict.RESTART, id="in-no-match"),
        pytest.param([rule("FailJob", **NOT_IN_1)], Failure("p", exit_code=42), Verdict.FAIL, id="not-in"),
        pytest.param([rule("FailJob", **NOT_IN_1)], Failure("p"), Verdict.RESTART, id="no-exit-code"),
        pytest.param(
            [rule("RestartIgnoreBudget", **IN_42), rule("FailJob", **NOT_IN_1)],
            Failure("p", exit_code=42),
            Verdict.RESTART_FREE,
            id="first-match-counts",
        ),
        pytest.param(
            [rule("FailJob", **DISRUPTED)],
            Failure("p", conditions=(("DisruptionTarget", "True"),)),
            Verdict.FAIL,
            id="condition",
        ),
        pytest.param(
            [rule("FailJob", **DISRUPTED)],
            Failure("p", conditions=(("DisruptionTarget", "False"),)),
            Verdict.RESTART,
            id="condition-false",
        ),
        pytest.param(
            [rule("Restart", **IN_42)], Failure("p", exit_code=42, fatal=True), Verdict.RESTART, id="rule-wins"
        ),
    ],
)
def test_failure_rules(rules: list[api.FailureRule], failure: Failure, expected: Verdict) -> None:
    assert classify.apply_rules(rules, failure) is expected


RESET = Failure("", message="RuntimeError: Connection reset by peer", exit_code=1)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        pytest.param([RESET, Failure("", message="ValueError: bad", exit_code=1)], 1, id="consequence-is-told-first"),
        pytest.param([Failure("", message="ValueError: a"), Failure("", message="ValueError: b")], 0, id="earliest"),
        pytest.param([RESET, RESET], 0, id="only-consequences"),
        pytest.param(
            [Failure("", message="the world broke"), Failure("", exit_code=137, signal="SIGKILL")], 1, id="killed"
        ),
        pytest.param([Failure("", message="the world broke"), Failure("", exit_code=3)], 1, id="silent-exit"),
        pytest.param(
            [Failure("", exit_code=134, signal="SIGABRT"), Failure("", exit_code=1, message="ValueError: bad")], 1,
            id="nccl-watchdog",
        ),
        pytest.param([RESET, Failure("", exit_code=134, signal="SIGABRT")], 1, id="gloo-aborts-one-and-others-lose-it"),
        pytest.param(
            [Failure("", message="elasticjob.errors.WorldLostError: a member was lost", exit_code=1),
             Failure("", message="ValueError: bad", exit_code=1)], 1, id="a-lost-world",
        ),
        pytest.param(
            [RESET, Failure("", message="elasticjob.errors.StepsDifferError: it left (gloo: Connection reset)")], 1,
            id="a-refusal-that-quotes-gloo",
        ),
    ],
)  # fmt: skip
def test_first_failure(found: list[Failure], first: int) -> None:
    named = [replace(failure, pod=str(i)) for i, failure in enumerate(found)]
    assert classify.first_failure(named).pod == str(first)


@pytest.mark.parametrize(
    ("waits", "blamed", "reason"),
    [
        pytest.param((True, False, True), 1, "RankHung", id="one-does-not-arrive"),
        pytest.param((True, True), 0, "WorldHung", id="all-wait"),
        pytest.param((False, False), 0, "WorldHung", id="none-is-known-to-wait"),
        pytest.param((None, None), 0, "WorldHung", id="nobody-answers"),
        pytest.param((None, True, False), 2, "RankHung", id="one-does-not-answer"),
        pytest.param((False,), 0, "RankHung", id="alone"),
    ],
)
def test_who_is_blamed_for_a_hang(waits: tuple[bool | None, ...], blamed: int, reason: str) -> None:
    told = [wire.Failure(generation=1, rank=i, message="no step", kind="hang", waits=w) for i, w in enumerate(waits)]
    found = [classify.failure_of_agent(make_agent(i, "ready", 1), "node1", f, i) for i, f in enumerate(told)]
    failure = classify.first_failure([*found, RESET])
    assert (failure.rank, failure.reason) == (blamed, reason)


@pytest.mark.parametrize(
    ("entered", "blamed", "reason"),
    [
        pytest.param((417, 416, 417), 1, "RankHung", id="one-is-behind"),
        pytest.param((417, 417), 0, "WorldHung", id="none-is-behind"),
        pytest.param((417, 416, 416), 0, "WorldHung", id="two-are-behind"),
        pytest.param((417, None), 0, "WorldHung", id="one-does-not-say"),
        pytest.param((417,), 0, "WorldHung", id="alone"),
    ],
)
def test_of_ranks_that_all_wait_the_one_that_is_behind_is_blamed(
    entered: tuple[int | None, ...], blamed: int, reason: str
) -> None:
    told = [
        wire.Failure(generation=1, rank=i, message="no step", kind="hang", waits=True, collectives=count)
        for i, count in enumerate(entered)
    ]
    found = [classify.failure_of_agent(make_agent(i, "ready", 1), "node1", f, i) for i, f in enumerate(told)]
    failure = classify.first_failure(found)
    assert (failure.rank, failure.reason) == (blamed, reason)


def test_an_abort_without_words_says_where_they_are() -> None:
    told = wire.Failure(generation=1, rank=1, exit_code=134, signal="SIGABRT")
    found = classify.failure_of_agent(make_agent(1, "ready", 1), "node1", told, 1)
    assert "terminate called" in found.message and "collectives of different sizes" in found.message
    assert classify.is_secondary(found), "an exception of another rank is still the cause"


@pytest.mark.parametrize(
    ("signal", "code", "words"),
    [
        pytest.param("SIGKILL", -9, ("by the kernel", "resources.limits.memory"), id="killed, as for want of memory"),
        pytest.param("SIGBUS", -7, ("/dev/shm", "num_workers"), id="no room for a loader's batches"),
        pytest.param("SIGSEGV", -11, ("native code", "PYTHONFAULTHANDLER"), id="crashed"),
        pytest.param(None, 3, ("see the pod's log",), id="the script's own code"),
    ],
)
def test_a_signal_without_words_says_what_it_mostly_means(
    signal: str | None, code: int, words: tuple[str, ...]
) -> None:
    """A process that is killed writes nothing: to send its owner to the log would be a wrong way."""
    told = wire.Failure(generation=1, rank=1, exit_code=code, signal=signal)
    found = classify.failure_of_agent(make_agent(1, "ready", 1), "node1", told, 1)
    assert all(word in found.message for word in words)


def test_failure_of_an_agent_reports_signals_as_exit_codes() -> None:
    reported = wire.Failure(generation=1, rank=5, exit_code=-11, signal="SIGSEGV", message="crash")
    failure = classify.failure_of_agent(make_agent(1, "ready", 1), "node1", reported, 1)
    assert (failure.exit_code, failure.signal, failure.rank, failure.reason) == (139, "SIGSEGV", 5, "SIGSEGV")


# --- budget ----------------------------------------------------------------------------------------------

CHARGED = api.RestartStatus(user=1, total=1, window_start=ago(10), last_time=ago(10), generation=3, step=100)


@pytest.mark.parametrize(
    ("before", "free", "generation", "window", "expected"),
    [
        pytest.param(api.RestartStatus(), False, 1, 3600, (1, 0, 1, 1), id="first"),
        pytest.param(CHARGED, False, 4, 3600, (2, 0, 2, 4), id="second"),
        pytest.param(CHARGED, True, 4, 3600, (1, 1, 1, 4), id="free"),
        pytest.param(CHARGED, False, 4, 5, (1, 0, 2, 4), id="window-expired"),
        pytest.param(CHARGED, False, 4, 0, (2, 0, 2, 4), id="window-of-a-lifetime"),
        pytest.param(CHARGED, False, 0, 3600, (2, 0, 2, 3), id="outside-a-world"),
        pytest.param(
            CHARGED.model_copy(update={"last_time": ago(1)}), False, 3, 3600, (1, 0, 1, 3), id="same-generation-again"
        ),
        pytest.param(
            CHARGED.model_copy(update={"last_time": ago(1)}), False, 0, 3600, (1, 0, 1, 3), id="its-consequence"
        ),
    ],
)
def test_charge(
    before: api.RestartStatus, free: bool, generation: int, window: int, expected: tuple[int, int, int, int]
) -> None:
    elastic = api.ElasticPolicy(restart_window_seconds=window)
    after = budget.charge(before, elastic, free=free, generation=generation, counted=["a"], step=None, now=NOW)
    assert (after.user, after.infrastructure, after.total, after.generation) == expected
    assert after.counted == ["a"]


@pytest.mark.parametrize(
    ("errors", "alike"),
    [
        pytest.param(["a"], 1, id="once"),
        pytest.param(["a", "a", "a"], 3, id="in a row"),
        pytest.param(["a", "a", "b"], 1, id="another one"),
        pytest.param(["a", "", "a"], 1, id="one between that is not known"),
        pytest.param([""], 0, id="not known"),
    ],
)
def test_the_same_error_is_counted_in_a_row(errors: list[str], alike: int) -> None:
    restarts, elastic = api.RestartStatus(), api.ElasticPolicy()
    for generation, error in enumerate(errors, 1):
        restarts = budget.charge(
            restarts, elastic, free=False, generation=generation, counted=[], step=7, now=NOW, error=error
        )
    assert (restarts.alike, restarts.error) == (alike, errors[-1] or None)
    assert budget.refund(restarts, 7) == restarts
    assert (budget.refund(restarts, 8).alike, budget.refund(restarts, 8).error) == (0, None)


@pytest.mark.parametrize(
    ("steps", "alike"),
    [
        pytest.param([812, 812, 812], [1, 2, 3], id="the same step"),
        pytest.param([812, 813, 812, 813], [1, 1, 2, 3], id="to and fro"),
        pytest.param([813, 812, 813], [1, 2, 3], id="a step less"),
        pytest.param([812, 700, 801], [1, 2, 3], id="earlier ones"),
        pytest.param([812, 813, 814], [1, 1, 1], id="each time a step further"),
        pytest.param([None, None], [1, 2], id="before any step"),
    ],
)
def test_the_same_error_is_counted_from_the_highest_step_that_was_made(
    steps: list[int | None], alike: list[int]
) -> None:
    """What was heard of the last step may differ from one failure to the next; a step that is made for the first time
    is progress, though it be only one."""
    restarts, elastic, found = api.RestartStatus(), api.ElasticPolicy(), []
    for generation, step in enumerate(steps, 1):
        for made in range(1, (step or 0) + 1):
            restarts = budget.refund(restarts, made)
        restarts = budget.charge(
            restarts, elastic, free=False, generation=generation, counted=[], step=step, now=NOW, error="a"
        )
        found.append(restarts.alike)
    assert found == alike


def test_a_pod_made_after_the_last_charge_fails_for_itself() -> None:
    before = CHARGED.model_copy(update={"last_time": ago(1.5)})
    after = budget.charge(
        before, api.ElasticPolicy(), free=False, generation=0, counted=[], step=None, now=NOW, began=NOW - 1
    )
    assert after.user == 2


@pytest.mark.parametrize(
    ("step", "user"),
    [
        pytest.param(None, 1, id="no-progress-known"),
        pytest.param(100, 1, id="same-step"),
        pytest.param(101, 0, id="further"),
    ],
)
def test_refund(step: int | None, user: int) -> None:
    after = budget.refund(CHARGED, step)
    assert (after.user, after.total) == (user, 1)


# --- nodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "node", "answering", "due", "later"),
    [
        pytest.param(make_pod(0), make_node(), set(), set(), None, id="well"),
        pytest.param(
            make_pod(0), make_node(ready=False, not_ready_since=NOW - 10), set(), set(), NOW + 20, id="node-dead"
        ),
        pytest.param(
            make_pod(0), make_node(ready=False, not_ready_since=NOW - 30), set(), {"u0"}, None, id="node-long-dead"
        ),
        pytest.param(
            make_pod(0), make_node(ready=False, not_ready_since=NOW - 99), {"u0"}, set(), None, id="its-agent-answers"
        ),
        pytest.param(make_pod(0), None, set(), {"u0"}, None, id="node-gone"),
        pytest.param(
            make_pod(0, created=NOW - 2, scheduled=NOW - 2), None, set(), set(), NOW + 3, id="node-not-known-yet"
        ),
        pytest.param(make_pod(0, deleting=NOW - 10), make_node(), set(), set(), NOW + 20, id="deletion-overdue"),
        pytest.param(make_pod(0, deleting=NOW - 30), make_node(), set(), {"u0"}, None, id="deletion-ignored"),
        pytest.param(make_pod(0, "Failed"), None, set(), set(), None, id="ended"),
        pytest.param(
            make_pod(0, deleting=NOW - 90, held_by=("x/y",)), None, set(), set(), None, id="held-by-a-finalizer"
        ),
    ],
)
def test_forced_deletions(pod: Pod, node: Node | None, answering: set[str], due: set[str], later: float | None) -> None:
    seen = {node.name: node} if node else {}
    assert nodes.overdue_deletions([pod], seen, answering, timeout=30, now=NOW) == (frozenset(due), later)
