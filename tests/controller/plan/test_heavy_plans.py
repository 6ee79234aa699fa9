"""What is planned in the event loop, and not in a thread, is little: whatever pods and agents have said.

A job of few pods may bring as much to read as one of thousands. The work is counted in calls of functions, which depend
on nothing but the code: a hundred thousand of them take about a hundredth of a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from controller.builders import NOW, make_agent, make_job, make_pod, make_spec, make_world
from controller.counted_work import count_calls
from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.failures import health_watch
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.plan.plan import Seen, plan
from elasticjob_operator.run.controller import MOST_IN_LOOP
from elasticjob_operator.text import clean
from elasticjob_operator.times import format_time

MOST_CALLS = 250_000
TEXTS: Mapping[str, str] = {
    "line ends": "\n" * 16_384,
    "words": "a\n" * 8_192,
    "escapes": "\x1b[" * 8_192,
    "tracebacks": "Traceback (most recent call last):\nE\n\nDuring handling of the above exception:\n\n" * 200,
    "groups": "  + Exception Group Traceback\n" + "  | E: x\n" * 1_800,
}


def see(count: int, say: Callable[[int], Mapping[str, object]] | None = None, ended: str = "", phase: str = "") -> Seen:
    """A job of so many pods, of whose agents each says something, or which have all ended."""
    spec = make_spec(1, count, replicas=count, health={"preflight": "Network"})
    running = api.Condition(type="Running", status="True", last_transition_time=format_time(NOW - 300))
    status = api.Status(
        template_hash=spec.template_hash,
        start_time=format_time(NOW - 500),
        rendezvous=make_world(1, tuple(range(count))) if phase != "starting" else api.RendezvousStatus(),
        observed_generation=1,
        conditions=[running],
    )
    pods = tuple(
        make_pod(i, "Failed", exit=Exit(1, "Error", ended[:4096])) if ended else make_pod(i) for i in range(count)
    )
    agents = {f"u{i}": make_agent(i, phase, 1, said=say(i)) for i in range(count)} if say else {}
    return Seen(job=make_job(spec, status), pods=pods, agents=agents, now=NOW, hub_started=NOW - 1000)


def list_links(count: int, index: int) -> Mapping[str, object]:
    others = [(index + step + 1) % count for step in range(64)]
    links = tuple(wire.Link(uid=f"u{other}", seconds=0.1, bytes_per_second=4e8) for other in others)
    return {"preflight": wire.Preflight(port=30_000 + index, links=links)}


def fail(text: str) -> Mapping[str, object]:
    return {"failure": wire.Failure(generation=1, rank=0, message=text[:4096], traceback=text[:16_384])}


def see_failed(text: str, count: int) -> Seen:
    return see(count, lambda index: fail(text), phase="failed")


def hold_shards(index: int) -> Mapping[str, object]:
    return {"shards": tuple(range(2048))}


def see_reports(count: int) -> Seen:
    """Each rank reports what each of sixteen rules looks for."""
    rules = [{"name": f"R{i}", "when": {"metric": {"name": f"m{i}", "above": 0}}} for i in range(16)]
    seen = see(count)
    spec = make_spec(1, count, replicas=count, health={"rules": rules})
    told = {f"m{i}": 1.0 for i in range(16)}
    agents = {
        f"u{i}": make_agent(i, "running", 1, progress=wire.Progress(generation=1, rank=i, metrics=told))
        for i in range(count)
    }
    return replace(seen, job=make_job(spec, seen.job.status), agents=agents)


def see_signs(count: int) -> Seen:
    """Each rank has written what each of sixteen rules looks for, in long lines of what nobody sees."""
    rules = [{"name": f"R{i}", "when": {"log": f"x{i}"}} for i in range(16)]
    signs = tuple(wire.Sign(rule=f"R{i}", generation=1, rank=0, line="\x1b" * 256) for i in range(16))
    seen = see(count, lambda index: {"signs": signs}, phase="running")
    spec = make_spec(1, count, replicas=count, health={"rules": rules})
    return replace(seen, job=make_job(spec, seen.job.status))


CASES: Mapping[str, Callable[[int], Seen]] = {
    "nothing": see,
    "links": lambda count: see(count, lambda i: list_links(count, i), phase="starting"),
    "reports": see_reports,
    "signs": see_signs,
    "shards": lambda count: see(count, hold_shards, phase="ready"),
    **{f"pods with {name}": functools.partial(see, ended=text) for name, text in TEXTS.items()},
    **{f"agents with {name}": functools.partial(see_failed, text) for name, text in TEXTS.items()},
}


def find_most_in_loop(make: Callable[[int], Seen]) -> Seen:
    """The largest job of this kind that is planned in the event loop."""
    count = 1
    while make(count + 1).weight <= MOST_IN_LOOP:
        count += 1
    return make(count)


def test_lines_of_workers_are_cleaned_in_a_thread_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """To clean one takes as long as to plan a pod, in a single call."""
    cleaned: list[int] = []

    def count_clean(text: str, limit: int = 256) -> str:
        cleaned.append(len(text))
        return clean(text, limit)

    seen = find_most_in_loop(see_signs)
    monkeypatch.setattr(health_watch, "clean", count_clean)
    watch_and_plan(seen)
    assert len(cleaned) >= 16, "it has something to clean"
    assert sum(cleaned) / 256 <= MOST_IN_LOOP / 2, f"{len(cleaned)} lines of {len(seen.pods)} pods"


def test_reports_are_judged_in_a_thread_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """To judge one takes half as long as to plan a pod."""
    judged: list[str] = []
    judge = health_watch._find_wrong

    def count_judged(check: api.MetricCheck, before: health_watch.RuleMemory, report: health_watch.Report) -> str:
        judged.append(report.uid)
        return judge(check, before, report)

    seen = find_most_in_loop(see_reports)
    monkeypatch.setattr(health_watch, "_find_wrong", count_judged)
    watch_and_plan(seen)
    assert len(judged) >= 16, "it has something to judge"
    assert len(judged) <= 2 * MOST_IN_LOOP, f"{len(judged)} reports of {len(seen.pods)} pods"


def watch_and_plan(seen: Seen) -> None:
    """As a pass of the controller does."""
    spec, status = seen.job.spec, seen.job.status
    assert spec is not None
    plan(replace(seen, health=health_watch.look({}, spec, status, seen.agents, seen.now)))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_a_plan_that_costs_much_is_made_in_a_thread(make: Callable[[int], Seen]) -> None:
    count = 8
    watch_and_plan(make(count))
    while make(2 * count).weight <= MOST_IN_LOOP:
        count *= 2
    calls = count_calls(lambda: watch_and_plan(make(count)))
    made = count_calls(lambda: make(count))
    assert calls - made <= MOST_CALLS, f"{calls - made} for {count} pods of weight {make(count).weight}"


def test_a_job_of_ordinary_size_is_planned_at_once() -> None:
    assert see(100, lambda i: fail("ValueError: x\n" * 20), phase="failed").weight <= MOST_IN_LOOP
