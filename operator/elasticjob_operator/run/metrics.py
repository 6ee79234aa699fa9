"""The operator's Prometheus metrics, all declared in this module.

Gauges of a job are read from its status, so they are correct after a restart of the operator and disappear with the
job. Counters count the records between two statuses; what happened before this process started is not counted again.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import prometheus_client
from prometheus_client import core, registry

from elasticjob_operator import api
from elasticjob_operator.api.names import Cause, JobKey
from elasticjob_operator.history import moments
from elasticjob_operator.history.moments import Moment, Told
from elasticjob_operator.history.records import Kind, Record
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.shares import Room

_RESCALE_BUCKETS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_LOOP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BUSY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.06, 0.075, 0.1, 0.25, 0.5, 1.0)
_PAGE_JOBS: Final = 200
# Names of a script's metrics that become labels, for each job and namespace and life of the operator: one that reports
# new names in each step, or a namespace full of such jobs, must not fill the Prometheus of everybody.
MOST_NAMES, MOST_OF_A_NAMESPACE, _MOST_NAME = 8, 1000, 64
# Of each kind of series whose labels a tenant may choose. Many namespaces leave room to one that has none.
MOST_SERIES: Final = 10_000
MOST_JOBS: Final = 10_000  # with series of their own, of which one namespace gets nine tenths
_PARTS: Final = {"links": 32, "stragglers": 8, "incidents": 16}  # of a job, which become series
_CAUSES: Final = frozenset(Cause)
_TIERS: Final = frozenset(api.Tier)


def _label(text: str | None) -> str:
    """The label for a cause. Unknown values must not create new labels."""
    return text if text in _CAUSES else "other"


_Read = Callable[[Moment, float, float], float | None]  # of a status, the seconds trained and the seconds lost
_JOB_SERIES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("world_size", "Pods in the running world.", lambda one, trained, lost: one.size),
    ("generation", "Number of the current world.", lambda one, trained, lost: one.generation),
    ("training_seconds", "Seconds with a complete, running world.", lambda one, trained, lost: trained),
    ("lost_seconds", "Seconds without one, since the first world.", lambda one, trained, lost: lost),
    (
        "goodput_ratio",
        "Share of the time since the first world that was trained.",
        lambda one, trained, lost: trained / (trained + lost) if trained + lost > 0 else None,
    ),
    ("faults", "Failures and lost members that the job has recovered from.", lambda one, trained, lost: one.faults),
    (
        "mean_recovery_seconds",
        "Mean time from a fault until the next world trained.",
        lambda one, trained, lost: one.mean_recovery_seconds,
    ),
    (
        "mean_seconds_between_faults",
        "Training time for each fault.",
        lambda one, trained, lost: one.mean_seconds_between_faults,
    ),
    (
        "archive_interval_seconds",
        "checkpoints.archive.everySeconds of the job.",
        lambda one, trained, lost: one.archive_seconds,
    ),
)
_TOLD_SERIES: Final[tuple[tuple[str, str, Callable[[Told], float | None]], ...]] = (
    ("step", "The last step that the script has reported.", lambda told: told.step),
    ("total_steps", "Steps until the script is done, as it said.", lambda told: told.total_steps),
    ("step_seconds", "Seconds of a step, smoothed.", lambda told: told.step_seconds),
    ("samples_per_second", "Samples that all ranks process.", lambda told: told.samples_per_second),
    ("tokens_per_second", "Tokens that all ranks process.", lambda told: told.tokens_per_second),
    ("mfu", "Model FLOPs utilization: the share of the devices' peak, by the script's numbers.", lambda told: told.mfu),
    (
        "last_report_timestamp_seconds",
        "When a step was last written to the status; at most every ten seconds.",
        lambda told: told.at,
    ),
)

_Parts = Callable[[Moment, float], Iterable[tuple[str, float]]]  # of a status, now: further labels, and their value
_PART_SERIES: Final[tuple[tuple[str, str, _Parts], ...]] = (
    (
        "lost_category_seconds",
        "Lost time that has been accounted for, by category.",
        lambda one, now: ((f'category="{category}"', seconds) for category, seconds in one.lost),
    ),
    (
        "checkpoint_age_seconds",
        "Age of the state in the last finished checkpoint, by where it is.",
        lambda one, now: ((f'tier="{tier}"', max(0.0, now - at)) for tier, at in _saved(one)),
    ),
    (
        "straggler_slowdown_ratio",
        "How many times as slow as the others a slow rank is.",
        lambda one, now: (
            (f'rank="{s.rank}",worker="{_escaped(s.pod)}",node="{_escaped(s.node)}"', s.slowdown)
            for s in one.stragglers
        ),
    ),
    (
        "rule_incidents",
        "How often a rule of health.rules has fired.",
        lambda one, now: ((f'rule="{_escaped(rule)}"', count) for rule, count, _ in one.incidents),
    ),
    (
        "preflight_round_trip_seconds",
        "The shortest round trip from a node to another one, when its pod was checked.",
        lambda one, now: ((f'node="{_escaped(node)}"', seconds) for node, seconds, _ in one.links),
    ),
    (
        "preflight_bytes_per_second",
        "To and from the other node with the best link, when its pod was checked; 0 if there was none.",
        lambda one, now: ((f'node="{_escaped(node)}"', rate) for node, _, rate in one.links),
    ),
)


def _saved(one: Moment) -> Iterable[tuple[str, float]]:
    """The tiers that this operator knows: others must not create new labels."""
    return () if one.told is None else ((tier, at) for tier, at in one.told.saved if tier in _TIERS)


class Metrics:
    """The operator's metrics registry. The caller passes `now`."""

    def __init__(self, *, version: str = "") -> None:
        self.registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=self.registry)
        self._jobs: dict[JobKey, Moment] = {}

        def counter(name: str, text: str, *labels: str) -> prometheus_client.Counter:
            return prometheus_client.Counter(f"elasticjob_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> prometheus_client.Histogram:
            return prometheus_client.Histogram(
                f"elasticjob_{name}", text, labels, buckets=tuple(buckets), registry=self.registry
            )

        self.generations = counter("generations_total", "Worlds formed, by cause.", "cause")
        self.rescale_seconds = histogram(
            "rescale_seconds", "Time from a failure or change to the next running world.", _RESCALE_BUCKETS, "cause"
        )
        self.restarts = counter("restarts_total", "Restarts, by who caused them.", "cause")
        self.api_requests = counter("api_requests_total", "Requests to the API server.", "verb", "resource", "code")
        self.api_seconds = histogram("api_request_seconds", "Time of a request.", _LOOP_BUCKETS, "verb", "resource")
        self.pass_seconds = histogram("reconcile_seconds", "Time of one pass over a job.", _LOOP_BUCKETS)
        self.pass_errors = counter("reconcile_errors_total", "Passes that failed with an error.")
        self.queue_seconds = histogram("reconcile_wait_seconds", "Time from a wake-up to its pass.", _LOOP_BUCKETS)
        self.loop_lag_seconds = histogram("event_loop_lag_seconds", "How late the event loop is.", _LOOP_BUCKETS)
        self.loop_busy_seconds = histogram(
            "event_loop_busy_seconds", "CPU time between two samples of the event loop, 10 ms apart.", _BUSY_BUCKETS
        )
        self._loop_max = prometheus_client.Gauge(
            "elasticjob_event_loop_max_seconds",
            "Longest time since the start that the event loop was late (lag) or computed without a pause (busy).",
            ["clock"],
            registry=self.registry,
        )
        self._lag_max = self._busy_max = 0.0
        self.background_restarts = counter(
            "background_restarts_total", "Background tasks that failed and were restarted.", "task"
        )
        self.skipped = counter(
            "objects_skipped_total", "Objects that could not be processed, by kind and error.", "kind", "error"
        )
        self.foreign_objects = counter(
            "foreign_objects_total", "Objects with the operator's label that it does not own.", "kind"
        )
        self.leader = prometheus_client.Gauge(
            "elasticjob_leader", "1 if this replica is the leader.", registry=self.registry
        )
        self.jobs_of_others = prometheus_client.Gauge(
            "elasticjob_jobs_of_others",
            "Jobs that this operator watches, and over which one of another release decides.",
            registry=self.registry,
        )
        prometheus_client.Gauge(
            "elasticjob_build_info", "The version of this operator.", ["version"], registry=self.registry
        ).labels(version).set(1)
        self._labels: dict[JobKey, str] = {}
        self._names: dict[JobKey, dict[str, str]] = {}  # of the script's metrics that have series, and their labels
        self._room = Room(MOST_JOBS, greed=9)
        self._named = _room_for_series()
        self._parts = {kind: _room_for_series() for kind in _PARTS}
        self._requests: dict[tuple[str, str, int], tuple[prometheus_client.Counter, prometheus_client.Histogram]] = {}

    def update_job(self, job: JobKey, status: api.Status, archive: api.Archive | None = None) -> None:
        """Update the metrics of a job. Call it for every new status, including the first one seen."""
        before, after = self._jobs.get(job), moments.read(status)
        if archive is not None:
            after = replace(after, archive_seconds=archive.every_seconds)
        if before is not None and after.generation < before.generation:  # a job that was made anew
            self.forget_job(job)
            before = None
        if job not in self._labels and self._room.enter(job[0]):
            self._labels[job] = f'{{namespace="{_escaped(job[0])}",job="{_escaped(job[1])}"}}'
        self._jobs[job] = after = self._cut_parts(job, before, after)
        if after.told is not None and after.told.metrics and job in self._labels:
            self._name_metrics(job, after.told)
        if before is not None:  # otherwise it may have happened before this operator started
            for record in moments.compare(before, after, 0.0):
                self._count(record)

    def _name_metrics(self, job: JobKey, told: Told) -> None:
        names, labels, namespace = self._names.setdefault(job, {}), self._labels[job][:-1], job[0]
        for name, _ in sorted(told.metrics, key=lambda one: one[0] != "loss"):  # it comes first, also after a restart
            if len(names) >= MOST_NAMES:
                return
            is_new = name not in names and len(name) <= _MOST_NAME and name.isprintable()
            if is_new and self._named.enter(namespace):
                names[name] = f'{labels},metric="{_escaped(name)}"}}'

    def _cut_parts(self, job: JobKey, before: Moment | None, after: Moment) -> Moment:
        """With as much as the namespace has room for: a job keeps what it had when it has ended."""
        kept: dict[str, Any] = {}
        for kind, most in _PARTS.items():
            room, found = self._parts[kind], getattr(after, kind)[: most if job in self._labels else 0]
            room.leave(job[0], 0 if before is None else len(getattr(before, kind)))
            while found and not room.enter(job[0], len(found)):
                found = found[:-1]
            if found != getattr(after, kind):
                kept[kind] = found
        return replace(after, **kept) if kept else after

    def _count(self, record: Record) -> None:
        match record.kind:
            case Kind.FORMED:
                self.generations.labels(_label(record.cause)).inc(record.count)
            case Kind.TRAINS if record.seconds is not None:
                self.rescale_seconds.labels(_label(record.cause)).observe(record.seconds)
            case Kind.FAILED:
                self.restarts.labels("user").inc(record.count)
            case Kind.FORGIVEN:
                self.restarts.labels("infrastructure").inc(record.count)
            case _:
                pass

    def forget_job(self, job: JobKey) -> None:
        known = self._jobs.pop(job, None)
        if self._labels.pop(job, None) is not None:
            self._room.leave(job[0])
        self._named.leave(job[0], len(self._names.pop(job, ())))
        for kind, room in self._parts.items():
            room.leave(job[0], 0 if known is None else len(getattr(known, kind)))

    def observe_loop(self, lag: float, busy: float) -> None:
        """Record one sample of the event loop (seconds): see `loop_lag`."""
        self.loop_lag_seconds.observe(lag)
        self.loop_busy_seconds.observe(busy)
        if lag > self._lag_max:
            self._lag_max = lag
            self._loop_max.labels("lag").set(lag)
        if busy > self._busy_max:
            self._busy_max = busy
            self._loop_max.labels("busy").set(busy)

    def count_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server. `code` is 0 if there was no response."""
        kind = (verb, resource, code)
        found = self._requests.get(kind)
        if found is None:  # to look both up by their labels takes longer than to count
            found = self._requests[kind] = (
                self.api_requests.labels(verb, resource, str(code)),
                self.api_seconds.labels(verb, resource),
            )
        found[0].inc()
        found[1].observe(seconds)

    def watch_hub(self, hub: Hub) -> None:
        self.registry.register(_Connections(hub))

    @property
    def jobs(self) -> Mapping[JobKey, Moment]:
        return self._jobs

    def expose(self, now: float) -> bytes:
        """The metrics in Prometheus' text format."""
        return b"".join((prometheus_client.generate_latest(self.registry), *self._job_pages(now)))

    async def render(self, now: float) -> tuple[bytes, ...]:
        """Like `expose`, but yields between pages, so that thousands of jobs do not block the event loop."""
        pages = [prometheus_client.generate_latest(self.registry)]
        for page in self._job_pages(now):
            pages.append(page)
            await asyncio.sleep(0)
        return tuple(pages)

    def _job_pages(self, now: float) -> Iterator[bytes]:
        """The series of all jobs. They are formatted by hand, which is ten times as fast as the library."""
        jobs = list(self._jobs.items())
        tally, shown = Tally[str](), list[tuple[str, Moment, tuple[float, float]]]()
        for start in range(0, len(jobs), _PAGE_JOBS):
            for job, one in jobs[start : start + _PAGE_JOBS]:
                tally[one.phase] += 1
                if (labels := self._labels.get(job)) is not None:
                    shown.append((labels, one, one.seconds_until(now)))
            yield b""
        phases = (f'elasticjob_jobs{{phase="{phase}"}} {tally[str(phase)]}\n' for phase in api.Phase)
        yield _head("jobs", "Jobs by phase.") + "".join(phases).encode()
        yield _head("jobs_left_out", "Jobs without series of their own: there are too many.")
        yield f"elasticjob_jobs_left_out {len(jobs) - len(shown)}\n".encode()
        for name, text, read in _JOB_SERIES:
            yield _head(name, text)
            for start in range(0, len(shown), _PAGE_JOBS):
                yield "".join(
                    f"elasticjob_{name}{labels} {value!r}\n"
                    for labels, one, seconds in shown[start : start + _PAGE_JOBS]
                    if (value := read(one, *seconds)) is not None
                ).encode()
        reporting = [(labels, one.told) for labels, one, _ in shown if one.told]
        for name, text, read_told in _TOLD_SERIES:
            yield _head(name, text)
            for start in range(0, len(reporting), _PAGE_JOBS):
                yield "".join(
                    f"elasticjob_{name}{labels} {value!r}\n"
                    for labels, told in reporting[start : start + _PAGE_JOBS]
                    if (value := read_told(told)) is not None
                ).encode()
        for name, text, list_parts in _PART_SERIES:
            yield _head(name, text)
            for start in range(0, len(shown), _PAGE_JOBS):
                yield "".join(
                    f"elasticjob_{name}{labels[:-1]},{more}}} {value!r}\n"
                    for labels, one, _ in shown[start : start + _PAGE_JOBS]
                    for more, value in list_parts(one, now)
                ).encode()
        yield from self._metric_pages(jobs)

    def _metric_pages(self, jobs: list[tuple[JobKey, Moment]]) -> Iterator[bytes]:
        """What the scripts report. Few jobs have much of it, so a page is one of values and not of jobs."""
        left_out: Tally[str] = Tally()
        lines: list[str] = []
        yield _head("reported_metric", "A number that the script reports, such as its loss.")
        for number, (job, one) in enumerate(jobs, 1):
            names, told = self._names.get(job, {}), () if one.told is None else one.told.metrics
            lines += [
                f"elasticjob_reported_metric{names[name]} {_number(value)}\n" for name, value in told if name in names
            ]
            left_out[job[0]] += sum(name not in names for name, _ in told)
            if len(lines) > _PAGE_JOBS or number % _PAGE_JOBS == 0:
                yield "".join(lines).encode()
                lines.clear()
        yield "".join(lines).encode()
        yield _head("reported_metrics_left_out", "Numbers that scripts of a namespace report and that have no series.")
        for namespace, count in left_out.items():
            if count:
                yield f'elasticjob_reported_metrics_left_out{{namespace="{_escaped(namespace)}"}} {count}\n'.encode()


def _room_for_series() -> Room:
    return Room(MOST_SERIES, share=MOST_OF_A_NAMESPACE)


def _number(value: float) -> str:
    return repr(value) if value == value else "NaN"  # noqa: PLR0124 - only NaN is not itself


def _head(name: str, text: str) -> bytes:
    return f"# HELP elasticjob_{name} {text}\n# TYPE elasticjob_{name} gauge\n".encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Connections(registry.Collector):
    """Exports the hub's counts, `kind:detail`, as counters with labels."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterable[core.Metric]:
        connections = core.GaugeMetricFamily(
            "elasticjob_hub_connections", "Connected agents.", value=self._hub.connections
        )
        events = core.CounterMetricFamily(
            "elasticjob_hub_events",
            "Events at the hub: connections, losses, refusals, messages, directives.",
            labels=("event", "detail"),
        )
        for name, count in sorted(self._hub.counts.items()):
            event, _, detail = name.partition(":")
            events.add_metric([event, detail], count)
        places, limits = (
            core.GaugeMetricFamily(f"elasticjob_hub_{name}", text, labels=("stage",))
            for name, text in (
                ("places", "Connections by stage, from the handshake to established ones."),
                ("places_limit", "Limit of connections by stage."),
            )
        )
        for stage, (taken, limit) in self._hub.places.items():
            places.add_metric([stage], taken)
            limits.add_metric([stage], limit)
        return (connections, events, places, limits)
