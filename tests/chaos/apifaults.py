"""Faults of API servers: rejections, silence, late and lost events, outdated lists. One trial each."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from chaos.fault_proxy import Do, DoEvent, Event, EventFault, Fault, Request
from chaos.lab import Stage
from chaos.stories import STORIES, Ending, tell_disturbed
from chaos.trials import Trial

REFUSALS = {409: None, 429: 1, 500: None, 503: None}  # with the seconds of Retry-After
EVENT_FAULTS = (
    EventFault(DoEvent.MISS, 1.0),
    EventFault(DoEvent.TWICE),
    EventFault(DoEvent.SWAP, 0.5),
    EventFault(DoEvent.LATE, 1.0),
    EventFault(DoEvent.GONE),
    EventFault(DoEvent.BREAK),
    EventFault(DoEvent.STALL, 3.0),
)


def assert_no_storm(stage: Stage, ending: Ending, seconds: float) -> None:
    """Retries are allowed, a storm is not: at most a few requests per second more than the scenario needs."""
    allowed = 3 * ending.requests + 20 * seconds
    made = len(stage.proxy.requests)
    assert made <= allowed, f"{made} requests, {allowed:.0f} allowed: {stage.proxy.count().most_common(8)}"


def make_trial(name: str, story: str, ending: Ending, spoil: Callable[[Stage], None]) -> Trial:
    def tell(stage: Stage) -> None:
        spoil(stage)
        began = time.monotonic()
        tell_disturbed(stage, STORIES[story], ending)
        assert_no_storm(stage, ending, time.monotonic() - began)

    return Trial(f"{story}/{name}", tell)


def refuse_writes(status: int, first: int, count: int) -> Callable[[Stage], None]:
    """Reject this many consecutive writes, from the n-th on; each attempt counts."""

    def rule(request: Request) -> Fault | None:
        if first <= request.write < first + count:
            return Fault(Do.ANSWER, status, REFUSALS.get(status))
        return None

    return lambda stage: setattr(stage.proxy, "rule", rule)


def refuse_some(status: int, share: float, seed: int) -> Callable[[Stage], None]:
    """Reject a share of all requests, including reads and watches."""
    dice = random.Random(seed)

    def rule(request: Request) -> Fault | None:
        return Fault(Do.ANSWER, status, REFUSALS.get(status)) if dice.random() < share else None

    return lambda stage: setattr(stage.proxy, "rule", rule)


def slow(seconds: float) -> Callable[[Stage], None]:
    return lambda stage: setattr(stage.proxy, "rule", lambda request: Fault(Do.SLOW, seconds=seconds))


def hang_once(write: int) -> Callable[[Stage], None]:
    """One write hangs on a half-open connection; the operator's own timeout (30 s) ends it."""

    def rule(request: Request) -> Fault | None:
        return Fault(Do.HANG) if request.write == write else None

    return lambda stage: setattr(stage.proxy, "rule", rule)


def refuse_watches(status: int, count: int) -> Callable[[Stage], None]:
    """Answer the first watches of each resource with an error instead of a stream."""

    def spoil(stage: Stage) -> None:
        made: Counter[str] = Counter()

        def rule(request: Request) -> Fault | None:
            if request.verb != "WATCH" or made[request.resource] >= count:
                return None
            made[request.resource] += 1
            return Fault(Do.ANSWER, status)

        stage.proxy.rule = rule

    return spoil


def expire_token(first: int, seconds: float) -> Callable[[Stage], None]:
    """From the n-th write on, reject the operator's token for a while."""

    def spoil(stage: Stage) -> None:
        until: list[float] = []

        def rule(request: Request) -> Fault | None:
            if not until and request.write == first:
                until.append(time.monotonic() + seconds)
                stage.proxy.end_watches()
            return Fault(Do.ANSWER, 401) if until and time.monotonic() < until[0] else None

        stage.proxy.rule = rule

    return spoil


def spoil_event(resource: str, number: int, fault: EventFault) -> Callable[[Stage], None]:
    def rule(event: Event) -> EventFault | None:
        return fault if (event.resource, event.number) == (resource, number) else None

    return lambda stage: setattr(stage.proxy, "event_rule", rule)


def restart_stale(write: int, seconds: float) -> Callable[[Stage], None]:
    """Kill the operator after its n-th write; the next one sees the cluster as of the start of the scenario."""

    def spoil(stage: Stage) -> None:
        path = f"/api/v1/namespaces/{stage.jobs.namespace}/pods"
        stage.proxy.stale_version = stage.jobs.kube.request("GET", path)["metadata"]["resourceVersion"]
        made: list[Request] = []

        def rule(request: Request) -> Fault | None:
            if request.write != write or made:
                return None
            made.append(request)
            stage.proxy.stale_until = time.monotonic() + seconds
            return Fault(Do.KILL_AFTER)

        stage.proxy.rule = rule

    return spoil


def short_trials(endings: dict[str, Ending]) -> list[Trial]:
    trials = [make_trial(f"refused-{s}", "grow", endings["grow"], refuse_writes(s, 3, 4)) for s in REFUSALS]
    trials.append(make_trial("slow", "start", endings["start"], slow(0.3)))
    for i, fault in enumerate(EVENT_FAULTS):
        resource = ("pods", "elasticjobs")[i % 2]
        trials.append(
            make_trial(f"{resource}-{fault.do.value}", "loss", endings["loss"], spoil_event(resource, 4, fault))
        )
    miss = next(f for f in EVENT_FAULTS if f.do.value == "miss")
    # That the last pod is gone: nothing else would tell.
    trials.append(make_trial("pods-7-miss", "suspend", endings["suspend"], spoil_event("pods", 7, miss)))
    trials.append(make_trial("stale", "start", endings["start"], restart_stale(7, 2.0)))
    trials.append(make_trial("watches-gone", "start", endings["start"], refuse_watches(410, 2)))
    trials.append(make_trial("token-expired", "grow", endings["grow"], expire_token(3, 2.0)))
    return trials


def long_trials(endings: dict[str, Ending], seed: int) -> list[Trial]:
    trials = short_trials(endings)
    for story, ending in endings.items():
        for status in REFUSALS:
            trials.append(make_trial(f"some-{status}", story, ending, refuse_some(status, 0.2, seed)))
        for resource in ("pods", "elasticjobs"):
            for number in range(1, 9):
                for fault in EVENT_FAULTS:
                    name = f"{resource}-{number}-{fault.do.value}"
                    trials.append(make_trial(name, story, ending, spoil_event(resource, number, fault)))
        for write in range(2, ending.writes + 1, 2):
            trials.append(make_trial(f"stale-{write}", story, ending, restart_stale(write, 5.0)))
        trials.append(make_trial("hang", story, ending, hang_once(3)))
        trials.append(make_trial("slow-2", story, ending, slow(2.0)))
    return trials
