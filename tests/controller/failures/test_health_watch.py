"""What the reports of ranks say about the rules of a job: a table of trainings, sick ones and healthy ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.builders import NOW, make_agent, make_spec, make_world
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import budget, health_watch, incidents
from elasticjob_operator.failures.health_watch import Finding, Memory
from elasticjob_operator.model.observe import Agent
from elasticjob_operator.model.revise import revise
from elasticjob_operator.plan import accounting
from elasticjob_operator.sizing.retreat import FailedChange
from elasticjob_operator.times import format_time

FALLING = [10 * math.exp(-step / 40) + 1 for step in range(100)]
NAN = math.nan


def rule(**metric: Any) -> dict[str, Any]:
    """A rule about the loss, unless `metric` has another name; the other fields of a rule may be among them."""
    more: dict[str, Any] = {key: metric.pop(key) for key in ("forSeconds", "action", "from", "atMost") if key in metric}
    return {"name": "Rule", "when": {"metric": {"name": "loss", **metric}}, **more}


def spec_of(*rules: dict[str, Any]) -> api.Spec:
    return make_spec(health={"rules": list(rules)})


def tell(index: int, step: int, at: float, generation: int = 1, **told: Any) -> Agent:
    """The agent of rank `index`, with its last report."""
    values = told.pop("metrics", {})
    metrics = {name: value for name, value in values.items() if math.isfinite(value)}
    progress = wire.Progress(
        generation=generation, rank=index, step=step, metrics=metrics, not_finite=sorted({*values} - {*metrics}), **told
    )
    return make_agent(index, "running", generation, progress=progress, progress_since=at)


def watch(
    spec: api.Spec, losses: Iterable[Sequence[float]], status: api.Status | None = None
) -> list[tuple[int, Finding]]:
    """What is found in the reports of two ranks, one each second: when, and each finding once."""
    status = status or api.Status(rendezvous=make_world(1, (0, 1)))
    memory: Memory = {}
    found: list[tuple[int, Finding]] = []
    for step, values in enumerate(losses):
        now = NOW + step
        agents = {f"u{i}": tell(i, step, now, metrics={"loss": one}) for i, one in enumerate(values)}
        memory = health_watch.look(memory, spec, status, agents, now)
        for one in health_watch.find(spec, status, memory, now).values():
            if not found or found[-1][1].step != one.step:
                found.append((step, one))
    return found


def both(values: Iterable[float]) -> list[tuple[float, float]]:
    return [(one, one) for one in values]


def at(step: int, value: float, rank: int | None = None, times: int = 1) -> list[list[float]]:
    """Two ranks with a falling loss, of which one or both have this value for some steps."""
    rows = [[one, one] for one in FALLING]
    for i in range(step, step + times):
        for j in (0, 1):
            rows[i][j] = value if rank in (None, j) else rows[i][j]
    return rows


SICK: dict[str, tuple[dict[str, Any], list[list[float]], tuple[int, int, int | None, str]]] = {
    # when it is found, the first bad step, the last good one, what is said
    "NaN at all ranks": (
        rule(notFinite=True),
        at(12, NAN),
        (12, 12, 11, "rank 0 (digits-worker-0 on node0): loss is N"),
    ),
    "NaN at one rank": (rule(notFinite=True), at(12, NAN, 1), (12, 12, 11, "rank 1 (digits-worker-1 on node1): loss")),
    "infinite": (rule(notFinite=True), at(0, math.inf), (0, 0, None, "loss is NaN or infinite at step 0, and 1 more")),
    "above": (rule(above=20), at(30, 21.5), (30, 30, 29, "loss is 21.5, above 20 at step 30")),
    "below": (rule(below=-1), at(30, -2, 1), (30, 30, 29, "rank 1 (digits-worker-1 on node1): loss is -2, below -1")),
    "above for a while": (rule(above=20, forSeconds=5), at(30, 21, None, 9), (35, 30, 29, "above 20 at step 30")),
    "a spike": (rule(sigma=6), at(60, 40.0), (60, 60, 59, "loss is 40, ")),
    "a spike at one rank": (
        rule(sigma=6),
        at(60, 40.0, 1),
        (60, 60, 59, "rank 1 (digits-worker-1 on node1): loss is 40, "),
    ),
    "a spike that has to stay for longer than its window": (
        rule(sigma=6, forSeconds=55),
        at(40, 40.0, None, 60),
        (95, 40, 39, "above its median"),
    ),
    "a spike that stays": (rule(sigma=6, forSeconds=3), at(60, 40.0, None, 9), (63, 60, 59, "above its median")),
}


@pytest.mark.parametrize(("one", "losses", "expected"), SICK.values(), ids=SICK)
def test_what_is_sick_is_found_once(
    one: dict[str, Any], losses: list[list[float]], expected: tuple[int, int, int | None, str]
) -> None:
    ((step, finding),) = watch(spec_of(one), losses)
    assert (step, finding.step, finding.good) == expected[:3]
    assert expected[3] in finding.message
    assert (finding.pod, finding.node) == (f"digits-worker-{finding.rank}", f"node{finding.rank}")


HEALTHY: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "a loss that falls": (rule(sigma=6), at(0, 11.0)),
    "above for too short a time": (rule(above=20, forSeconds=5), at(30, 21, None, 4)),
    "a high loss at the start": (rule(sigma=6), at(3, 1000.0)),
    "ranks with numbers of their own": (rule(sigma=6), [[1 + step % 3, 50 + step % 3] for step in range(60)]),
    "another metric": (rule(name="accuracy", notFinite=True), at(30, NAN)),
    "a number that falls, with one low report": (
        rule(fallsPercent=30),
        [[5.0, 5.0]] * 40 + [[1.0, 1.0]] + [[5.0, 5.0]] * 9,
    ),
    "a slow start": (rule(fallsPercent=30), [[0.1, 0.1]] * 6 + [[5.0, 5.0]] * 60),
    "a reward that stays negative": (rule(fallsPercent=30), [[-10.0, -10.0]] * 60),
    "a reward of which nothing is the best": (rule(fallsPercent=30), [[0.0, 0.0]] * 40 + [[-1.0, -1.0]] * 20),
}


@pytest.mark.parametrize(("one", "losses"), HEALTHY.values(), ids=HEALTHY)
def test_what_is_not_sick_is_not_told(one: dict[str, Any], losses: list[list[float]]) -> None:
    assert watch(spec_of(one), losses) == []


def test_a_number_that_falls_is_compared_with_the_best_at_this_size() -> None:
    losses = both([100.0] * 40 + [55.0] * 10)
    ((step, finding),) = watch(spec_of(rule(fallsPercent=40)), losses)
    assert step == 44, "half of the last eight"
    assert "loss is 55, 45 % below its best of 100 with 2 pods" in finding.message
    known = api.IncidentStatus(
        rule="Rule", metric="loss", best=[api.BestValue(size=2, value=200), api.BestValue(size=4, value=999)]
    )
    status = api.Status(rendezvous=make_world(1, (0, 1)), incidents=[known])
    ((step, finding),) = watch(spec_of(rule(fallsPercent=40)), both([100.0] * 30), status)
    assert step == 16, "it had been twice as good"
    assert "best of 200" in finding.message


def test_the_best_of_another_metric_is_forgotten() -> None:
    """A rule keeps its name when its author looks at samples in place of tokens."""
    world = make_world(1, (0, 1))
    before = sicken(spec_of(rule(fallsPercent=40)), [[9000.0, 9000.0]] * 20, api.Status(rendezvous=world))
    assert [one.value for one in before.incidents[0].best] == [9000]
    after, memory = spec_of(rule(name="samples", fallsPercent=40)), dict[str, health_watch.RuleMemory]()
    status = before
    for step in range(40):
        agents = {"u0": tell(0, step, NOW + step, metrics={"loss": 9000.0, "samples": 5.0})}
        memory = dict(health_watch.look(memory, after, status, agents, NOW + step))
        status = incidents.update(after, status, memory, NOW + step)
    assert status.incidents[0].count == 0
    assert [one.value for one in status.incidents[0].best] == [5]
    again = sicken(after, [[5.0, 5.0]] * 3, status)
    assert again.incidents[0].best == status.incidents[0].best, "that of this one is kept"


def test_a_best_of_which_the_metric_is_not_told_is_kept() -> None:
    """Operators of an earlier version wrote none; a job may not come back to a size for days."""
    best = [api.BestValue(size=2, value=200), api.BestValue(size=4, value=999)]
    status = api.Status(rendezvous=make_world(1, (0, 1)), incidents=[api.IncidentStatus(rule="Rule", best=best)])
    ((step, finding),) = watch(spec_of(rule(fallsPercent=40)), both([100.0] * 30), status)
    assert (step, "best of 200" in finding.message) == (16, True)
    after = sicken(spec_of(rule(fallsPercent=40)), [[199.0, 199.0]] * 20, status)
    assert (after.incidents[0].best, after.incidents[0].metric) == (best, "loss")


def test_a_reward_may_be_negative() -> None:
    ((step, finding),) = watch(spec_of(rule(fallsPercent=40)), both([-100.0] * 40 + [-150.0] * 10))
    assert step == 44, "half of the last eight"
    assert "loss is -150, 50 % below its best of -100 with 2 pods" in finding.message


@pytest.mark.parametrize("huge", [1.7e308, -1.7e308])
@pytest.mark.parametrize("check", [{"fallsPercent": 40}, {"sigma": 6}, {"above": 1}, {"below": 1}], ids=str)
def test_a_number_may_be_as_large_as_numbers_are(check: dict[str, Any], huge: float) -> None:
    """The mean of two such numbers is infinite, which no status can hold."""
    spec, status = spec_of(rule(**check)), api.Status(rendezvous=make_world(1, (0, 1)))
    memory: Memory = {}
    for step, loss in enumerate([huge] * 20 + [-huge] * 20 + [huge, -huge] * 20):
        now = NOW + step
        memory = health_watch.look(memory, spec, status, {"u0": tell(0, step, now, metrics={"loss": loss})}, now)
        status = incidents.update(spec, status, memory, now)
    assert all(math.isfinite(one.value) for known in status.incidents for one in known.best)


@pytest.mark.parametrize("losses", [at(12, NAN, 1), at(12, NAN), [[one[0]] for one in at(12, NAN)]])
def test_a_pod_that_its_rule_replaces_is_no_fault_of_its_node(losses: list[list[float]]) -> None:
    """Of what is wrong on all ranks one is heard of first, and many scripts report from one rank only."""
    found = sicken(
        spec_of(rule(notFinite=True, action="Replace")), losses, api.Status(rendezvous=make_world(1, (0, 1)))
    )
    assert [one.node for one in found.incidents], "it is told"
    assert found.node_faults == []


def sicken(spec: api.Spec, losses: list[list[float]], status: api.Status) -> api.Status:
    """The status after these reports of two ranks, one each second."""
    memory: Memory = {}
    generation = status.rendezvous.generation
    for step, values in enumerate(losses):
        now = NOW + step
        agents = {f"u{i}": tell(i, step, now, generation, metrics={"loss": one}) for i, one in enumerate(values)}
        memory = health_watch.look(memory, spec, status, agents, now)
        status = incidents.update(spec, status, memory, now)
    return status


def test_a_day_of_noise_raises_no_alarm() -> None:
    """A report every ten seconds of a number with noise, judged by rules as people write them."""
    draw = random.Random(7)
    rules = spec_of(
        rule(sigma=10) | {"name": "Spike"},
        rule(fallsPercent=50) | {"name": "Sinks"},
        rule(notFinite=True) | {"name": "Finite"},
        rule(above=1e4) | {"name": "Above"},
    )
    day = ((2 + draw.gauss(0, 0.05), 2 + draw.gauss(0, 0.05)) for _ in range(8_640))
    assert watch(rules, day) == []


def test_each_world_is_judged_by_itself() -> None:
    """After a restart from an older checkpoint the loss is higher than the last ones were, and nobody is sick."""
    spec, memory = spec_of(rule(sigma=6)), dict[str, health_watch.RuleMemory]()
    for step in range(80):
        generation = 1 + step // 40
        status = api.Status(rendezvous=make_world(generation, (0, 1)))
        agents = {"u0": tell(0, step, NOW + step, generation, metrics={"loss": FALLING[step % 40]})}
        memory = dict(health_watch.look(memory, spec, status, agents, NOW + step))
        assert health_watch.find(spec, status, memory, NOW + step) == {}


def test_an_incident_is_over_a_minute_after_the_last_bad_report() -> None:
    spec, status = spec_of(rule(above=20)), api.Status(rendezvous=make_world(1, (0, 1)))
    memory = health_watch.look({}, spec, status, {"u0": tell(0, 1, NOW, metrics={"loss": 21})}, NOW)
    good = {"u0": tell(0, 2, NOW + 1, metrics={"loss": 1})}
    memory = health_watch.look(memory, spec, status, good, NOW + 1)
    assert health_watch.find(spec, status, memory, NOW + 59)
    assert not health_watch.find(spec, status, memory, NOW + 60)


@pytest.mark.parametrize(("seconds", "opened"), [(0, 5), (300, 9)])
def test_steps_may_take_longer_than_a_minute(seconds: int, opened: int) -> None:
    """A report each 90 s, of which the sixth to the twelfth are bad: that is one incident, and not one for each."""
    spec = spec_of(rule(above=20, **({"forSeconds": seconds} if seconds else {})))
    status, memory = api.Status(rendezvous=make_world(1, (0, 1))), dict[str, health_watch.RuleMemory]()
    held: list[int] = []
    for now in range(0, 90 * 16, 10):
        step = now // 90
        agents = {"u0": tell(0, step, NOW + 90 * step, metrics={"loss": 21.0 if 5 <= step < 12 else 1.0})}
        memory = dict(health_watch.look(memory, spec, status, agents, NOW + now))
        status = incidents.update(spec, status, memory, NOW + now)
        held += [now] if status.incidents and status.incidents[0].since else []
    assert status.incidents[0].count == 1
    assert (held[0], held[-1]) == (90 * opened, 90 * 12 - 10), "until a good one has come, and a minute has passed"
    assert held == list(range(held[0], held[-1] + 1, 10))


def test_a_good_report_of_another_rank_is_not_good_while_one_is_sick() -> None:
    """Ranks report in turn: what one of them says meanwhile is no step to go back to."""
    spec, status = spec_of(rule(sigma=6, forSeconds=3)), api.Status(rendezvous=make_world(1, (0, 1)))
    memory, agents = dict[str, health_watch.RuleMemory](), dict[str, Agent]()
    for step in range(60):
        now, one = NOW + step, step % 2
        agents[f"u{one}"] = tell(one, step, now, metrics={"loss": 40.0 if one and step > 50 else 1 + step % 3})
        memory = dict(health_watch.look(memory, spec, status, agents, now))
    found = health_watch.find(spec, status, memory, NOW + 60)["Rule"]
    assert (found.rank, found.step, found.good) == (1, 51, 50)
    assert memory["Rule"].good == 50


def test_the_reports_of_the_first_pods_are_kept_for_a_rule_with_deviations() -> None:
    pods = health_watch.MOST_SERIES + 36
    spec, status = spec_of(rule(sigma=6)), api.Status(rendezvous=make_world(1, tuple(range(pods))))
    memory: Memory = {}
    for step in range(80):
        agents = {f"u{i}": tell(i, step, NOW + step, metrics={"loss": 1 + step % 3}) for i in range(pods)}
        memory = health_watch.look(memory, spec, status, agents, NOW + step)
    assert {*memory["Rule"].series} == {f"u{i}" for i in range(health_watch.MOST_SERIES)}
    assert {len(one.values) for one in memory["Rule"].series.values()} == {health_watch.WINDOW}


def test_pods_may_call_themselves_any_rank() -> None:
    """Nobody checks the rank in a report: of a job of any size, the reports of so many pods are kept."""
    pods = 2 * health_watch.MOST_SERIES
    spec, status = spec_of(rule(sigma=6)), api.Status(rendezvous=make_world(1, tuple(range(pods))))
    memory: Memory = {}
    for step in range(80):
        told = {i: tell((i + 40 * step) % pods, step, NOW + step, metrics={"loss": 1 + step % 3}) for i in range(pods)}
        agents = {f"u{i}": replace(one, pod_uid=f"u{i}") for i, one in told.items()}
        memory = health_watch.look(memory, spec, status, agents, NOW + step)
    assert len(memory["Rule"].series) == health_watch.MOST_SERIES


def test_ranks_that_are_well_again_keep_no_rule_from_finding_another_one() -> None:
    """A world may last for weeks, in which each of its ranks has one bad report."""
    pods = health_watch.MOST_BAD + 1
    spec, status = spec_of(rule(above=20)), api.Status(rendezvous=make_world(1, tuple(range(pods))))
    memory: Memory = {}
    for step in range(80):
        sick = range(pods - 1) if step == 1 else (pods - 1,) if step == 79 else ()
        agents = {f"u{i}": tell(i, step, NOW + step, metrics={"loss": 21 if i in sick else 1}) for i in range(pods)}
        memory = health_watch.look(memory, spec, status, agents, NOW + step)
    found = health_watch.find(spec, status, memory, NOW + 80)
    assert [one.rank for one in found.values()] == [pods - 1]


def test_a_changed_rule_begins_anew() -> None:
    status, agents = api.Status(rendezvous=make_world(1, (0, 1))), {"u0": tell(0, 1, NOW, metrics={"loss": 21})}
    before = spec_of(rule(above=20))
    memory = health_watch.look({}, before, status, agents, NOW)
    after = spec_of(rule(above=30))
    assert health_watch.find(after, status, health_watch.look(memory, after, status, agents, NOW), NOW) == {}


def test_a_loss_that_is_not_finite_is_reported_unless_the_rules_are_taken_away() -> None:
    (found,) = watch(make_spec(), at(12, NAN))
    assert (found[1].rule.name, found[1].rule.action) == ("LossNotFinite", api.HealthAction.REPORT)
    assert watch(make_spec(health={"rules": []}), at(12, NAN)) == []


@pytest.mark.parametrize(("name", "field"), [("tokensPerSecond", "tokens_per_second"), ("mfu", "mfu")])
def test_what_a_report_computes_is_a_metric_too(name: str, field: str) -> None:
    progress = wire.Progress.model_validate({"generation": 1, "step": 1, field: 0.25})
    assert health_watch.find_value(progress, name) == 0.25
    assert health_watch.find_value(progress.model_copy(update={"metrics": {name: 3.0}}), name) == 3.0
    assert health_watch.find_value(wire.Progress(), name) is None


@pytest.mark.parametrize(("user", "found"), [(1, False), (2, True), (3, True)])
def test_restarts_without_progress_are_counted(user: int, found: bool) -> None:
    spec = spec_of({"name": "Stuck", "when": {"noProgress": 2}})
    last = api.FailureStatus(message="rank 1 (p) failed", rank=1, pod="p", node="n")
    status = api.Status(restarts=api.RestartStatus(user=user, stuck=user, step=812), last_failure=last)
    told = health_watch.find(spec, status, {}, NOW)
    assert bool(told) is found
    if found:
        assert told["Stuck"].message == f"{user} restarts in a row without a step beyond 812; last: rank 1 (p) failed"
        assert (told["Stuck"].rank, told["Stuck"].pod, told["Stuck"].node) == (1, "p", "n")


@pytest.mark.parametrize(("step", "found"), [(812, True), (None, False)], ids=["reports", "reports nothing"])
def test_restarts_without_progress_are_counted_whatever_time_is_between(step: int | None, found: bool) -> None:
    """From an hourly checkpoint, each of them takes longer than the window of the budget. Whether a script that reports
    no step has made progress in that time, nobody knows."""
    restarts, elastic = api.RestartStatus(), api.ElasticPolicy()
    spec = spec_of({"name": "Stuck", "when": {"noProgress": 3}})
    for number in range(1, 4):
        assert not health_watch.find(spec, api.Status(restarts=restarts), {}, NOW)
        now = NOW + 2 * elastic.restart_window_seconds * number
        restarts = budget.charge(restarts, elastic, free=False, generation=number, counted=[], step=step, now=now)
    assert restarts.user == 1, "each has a budget of its own"
    assert bool(health_watch.find(spec, api.Status(restarts=restarts), {}, NOW)) is found
    assert not health_watch.find(spec, api.Status(restarts=budget.refund(restarts, 813)), {}, NOW)


def test_restarts_count_as_long_as_one_of_them_is_charged() -> None:
    """None is after a size that failed, or where an operator of an earlier version has seen progress: it keeps what it
    does not know."""
    spec = spec_of({"name": "Stuck", "when": {"noProgress": 3}})
    before = api.Status(restarts=api.RestartStatus(user=2, stuck=5, step=812))
    after = accounting._go_back(spec, before, FailedChange(worked=2, failed=3, worlds=2))
    assert (after.restarts.user, after.restarts.stuck) == (0, 3)
    assert not health_watch.find(spec, after, {}, NOW)
    again = budget.charge(after.restarts, api.ElasticPolicy(), free=False, generation=1, counted=[], step=813, now=NOW)
    assert (again.user, again.stuck) == (1, 1)


def test_restarts_that_an_earlier_version_has_charged_meanwhile_are_no_further_ones() -> None:
    """It has seen progress between them, and keeps the number, of which it does not know."""
    spec = spec_of({"name": "Stuck", "when": {"noProgress": 3}})
    restarts = api.RestartStatus()
    for number in range(1, 3):
        restarts = _charge(restarts, generation=number, step=812, now=NOW + 60 * number)
    earlier = _charge(budget.refund(restarts, 900), generation=3, step=950, now=NOW + 300)
    back = earlier.model_copy(update={name: getattr(restarts, name) for name in ("stuck", "stuck_total")})
    assert not health_watch.find(spec, api.Status(restarts=back), {}, NOW)
    again = _charge(back, generation=4, step=950, now=NOW + 400)
    assert (again.user, again.stuck) == (2, 1)
    assert not health_watch.find(spec, api.Status(restarts=again), {}, NOW)


def _charge(restarts: api.RestartStatus, *, generation: int, step: int, now: float) -> api.RestartStatus:
    return budget.charge(
        restarts, api.ElasticPolicy(), free=False, generation=generation, counted=[], step=step, now=now
    )


@pytest.mark.parametrize(
    ("age", "stepped", "found"), [(29, 0, False), (31, 0, True), (31, 1, False)], ids=["soon", "late", "it has stepped"]
)
def test_a_first_step_that_takes_too_long(age: float, stepped: int, found: bool) -> None:
    spec = spec_of({"name": "Slow", "when": {"slow": {"firstStepSeconds": 30}}})
    world = make_world(1, (0, 1), formed_time=format_time(NOW - age))
    status = api.Status(rendezvous=world, goodput=api.GoodputStatus(step_generation=stepped))
    assert bool(health_watch.find(spec, status, {}, NOW)) is found
    (one,) = health_watch.rules_of(spec)
    assert health_watch.due_at(one, status) == (None if stepped else NOW - age + 30)


@pytest.mark.parametrize(
    ("waited", "found"),
    [([None, 5.0, 9.0], False), ([None, 40.0], True), ([100.0, 104.0], False), ([100.0, 140.0], True)],
    ids=["short", "the first one", "an operator that starts anew", "long"],
)
def test_a_save_that_takes_too_long(waited: list[float | None], found: bool) -> None:
    spec = spec_of({"name": "Slow", "when": {"slow": {"checkpointSeconds": 30}}})
    status, memory = api.Status(rendezvous=make_world(1, (0, 1))), dict[str, health_watch.RuleMemory]()
    for step, seconds in enumerate(waited):
        agents = {"u0": tell(0, step, NOW + step, checkpoint_seconds=seconds)}
        memory = dict(health_watch.look(memory, spec, status, agents, NOW + step))
    told = health_watch.find(spec, status, memory, NOW + len(waited))
    assert [one.message for one in told.values()] == (
        ["rank 0 (digits-worker-0 on node0): its steps waited 40 s for a save at step 1"] if found else []
    )


def test_a_line_that_a_rank_wrote_counts_in_its_world_and_names_the_rank() -> None:
    spec = spec_of({"name": "Ecc", "when": {"log": "ECC"}, "action": "Replace"})
    sign = wire.Sign(rule="Ecc", generation=2, rank=5, step=40, line="GPU 3:\tECC \x1b[31merror")
    agents = {"u1": make_agent(1, "running", 2, said={"signs": (sign,)})}
    status = api.Status(rendezvous=make_world(2, (0, 1)))
    memory = health_watch.look({}, spec, status, agents, NOW)
    found = health_watch.find(spec, status, memory, NOW)["Ecc"]
    assert found.message == "rank 5 (digits-worker-1 on node1): wrote 'GPU 3: ECC  [31merror' at step 40"
    assert (found.step, found.good, found.uid) == (40, 40, "u1")
    memory = health_watch.look(memory, spec, status, agents, NOW + 300)
    assert health_watch.find(spec, status, memory, NOW + 300), "until there is another world"
    later = api.Status(rendezvous=make_world(3, (0, 1)))
    assert health_watch.find(spec, later, health_watch.look(memory, spec, later, agents, NOW), NOW) == {}
    other = spec_of({"name": "Other", "when": {"log": "ECC"}})
    assert health_watch.find(other, status, health_watch.look({}, other, status, agents, NOW), NOW) == {}


def test_a_rank_that_is_not_the_first_of_its_pod_is_named() -> None:
    told = tell(0, 7, NOW, metrics={"loss": 2.0}, not_finite_at={"loss": 3})
    spec, status = spec_of(rule(notFinite=True)), api.Status(rendezvous=make_world(1, (0, 1)))
    memory = health_watch.look({}, spec, status, {"u0": told}, NOW)
    assert health_watch.find(spec, status, memory, NOW)["Rule"].rank == 3


def test_an_incident_names_the_device_of_the_rank() -> None:
    """Of two processes in each pod: rank 3 is the second one of the second pod."""
    spec = spec_of(rule(notFinite=True))
    world = make_world(1, (0, 1))
    world = revise(world, members=[member.model_copy(update={"nproc": 2}) for member in world.members])
    status, memory = api.Status(rendezvous=world), dict[str, health_watch.RuleMemory]()
    told = tell(1, 7, NOW, metrics={"loss": 2.0}, not_finite_at={"loss": 3})
    for devices, device in ((("cuda:0 GPU-a", "cuda:1 GPU-b"), "cuda:1 GPU-b"), (("cuda:0 GPU-a",), None), ((), None)):
        agents = {"u1": replace(told, state=told.state.model_copy(update={"devices": devices}))}
        memory = dict(health_watch.look({}, spec, status, agents, NOW))
        (one,) = incidents.update(spec, status, memory, NOW, agents).incidents
        place = "digits-worker-1 on node1" + (f", {device}" if device else "")
        assert one.device == device
        assert one.message == f"rank 3 ({place}): loss is NaN or infinite at step 7"
