"""What Prometheus sees of the operator. Every metric is declared here and nowhere else.

Figures of a job are read from its status, so they are right after a restart of the operator and vanish with
the job. Counters are the differences between two statuses, seen by a pure function; what happened before this
process looked is not counted twice.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import prometheus_client
from prometheus_client import core, registry

from elasticjob_operator import api
from elasticjob_operator.hub import Hub
from elasticjob_operator.observe import parse_time

JobKey = tuple[str, str]

_RESCALE_BUCKETS: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_LOOP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The numbers in one status."""

    phase: str
    world_size: int
    generation: int
    cause: str
    training: bool
    training_seconds: float
    lost_seconds: float
    since: float | None  # since when it trains, or does not
    last_recovery_seconds: float | None
    restarts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened between two statuses of a job."""

    generations: int = 0
    cause: str = ""
    recovered_seconds: float | None = None
    restarts: tuple[tuple[str, int], ...] = ()


def read_status(status: api.Status) -> JobFigures:
    goodput, world = status.goodput, status.rendezvous
    return JobFigures(
        phase=str(status.phase or api.Phase.PENDING),
        world_size=world.world_size,
        generation=world.generation,
        cause=_label(world.reason),
        training=goodput.training,
        training_seconds=goodput.training_seconds,
        lost_seconds=goodput.lost_seconds,
        since=None if status.finished else parse_time(goodput.since),
        last_recovery_seconds=goodput.last_recovery_seconds,
        restarts=(("user", status.restarts.total), ("infrastructure", status.restarts.infrastructure)),
    )


def compute_changes(before: JobFigures | None, after: JobFigures) -> Changes:
    """Nothing where there is no `before`: it may have happened in the life of another operator."""
    if before is None:
        return Changes()
    recovered = None
    if after.training and not before.training and after.generation > 1:
        recovered = after.last_recovery_seconds
    grown = tuple(
        (cause, count - dict(before.restarts).get(cause, 0))
        for cause, count in after.restarts
        if count > dict(before.restarts).get(cause, 0)
    )
    return Changes(max(0, after.generation - before.generation), after.cause, recovered, grown)


def compute_goodput(figures: JobFigures, now: float) -> tuple[float, float]:
    """Seconds trained and seconds lost until now, the present stretch included."""
    open_stretch = max(0.0, now - figures.since) if figures.since is not None else 0.0
    if figures.training:
        return figures.training_seconds + open_stretch, figures.lost_seconds
    return figures.training_seconds, figures.lost_seconds + open_stretch


def _label(text: str | None) -> str:
    """A cause is one of a few words; anything else must not become a label of its own."""
    return text if text and _LABEL.fullmatch(text) else "other"


class Metrics:
    """The operator's registry. `now` is given by the caller who scrapes or reports."""

    def __init__(self, *, version: str = "") -> None:
        self.registry = prometheus_client.CollectorRegistry(auto_describe=False)
        prometheus_client.ProcessCollector(registry=self.registry)
        self._jobs: dict[JobKey, JobFigures] = {}
        self.now = 0.0

        def counter(name: str, text: str, *labels: str) -> prometheus_client.Counter:
            return prometheus_client.Counter(f"elasticjob_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> prometheus_client.Histogram:
            return prometheus_client.Histogram(
                f"elasticjob_{name}", text, labels, buckets=tuple(buckets), registry=self.registry
            )

        self.generations = counter("generations_total", "Worlds formed, by cause.", "cause")
        self.rescale_seconds = histogram(
            "rescale_seconds", "From a fault or change to the next running world.", _RESCALE_BUCKETS, "cause"
        )
        self.restarts = counter("restarts_total", "Restarts, by who caused them.", "cause")
        self.api_requests = counter("api_requests_total", "Requests to the API server.", "verb", "resource", "code")
        self.api_seconds = histogram("api_request_seconds", "Time of a request.", _LOOP_BUCKETS, "verb", "resource")
        self.pass_seconds = histogram("reconcile_seconds", "Time of one pass over a job.", _LOOP_BUCKETS)
        self.pass_errors = counter("reconcile_errors_total", "Passes that ended in an error.")
        self.queue_seconds = histogram("reconcile_wait_seconds", "From a wake-up to its pass.", _LOOP_BUCKETS)
        self.loop_lag_seconds = histogram("event_loop_lag_seconds", "How late the event loop is.", _LOOP_BUCKETS)
        self.background_restarts = counter(
            "background_restarts_total", "Background work that failed and began anew.", "task"
        )
        self.skipped = counter(
            "objects_skipped_total", "Objects that could not be taken in, by kind and error.", "kind", "error"
        )
        self.leader = prometheus_client.Gauge(
            "elasticjob_leader", "1 where this replica is in charge.", registry=self.registry
        )
        prometheus_client.Gauge(
            "elasticjob_build_info", "The version that runs.", ["version"], registry=self.registry
        ).labels(version).set(1)
        self.registry.register(_Jobs(self))

    def update_job(self, job: JobKey, status: api.Status) -> None:
        """Call it with every new status of a job, and once at first sight."""
        after = read_status(status)
        changes = compute_changes(self._jobs.get(job), after)
        self._jobs[job] = after
        if changes.generations:
            self.generations.labels(changes.cause).inc(changes.generations)
        if changes.recovered_seconds is not None:
            self.rescale_seconds.labels(changes.cause).observe(changes.recovered_seconds)
        for cause, count in changes.restarts:
            self.restarts.labels(cause).inc(count)

    def forget_job(self, job: JobKey) -> None:
        self._jobs.pop(job, None)

    def count_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """`code` is 0 where no answer came."""
        self.api_requests.labels(verb, resource, str(code)).inc()
        self.api_seconds.labels(verb, resource).observe(seconds)

    def watch_hub(self, hub: Hub) -> None:
        self.registry.register(_Connections(hub))

    @property
    def jobs(self) -> Mapping[JobKey, JobFigures]:
        return self._jobs

    def expose(self, now: float) -> bytes:
        """The text that Prometheus reads."""
        self.now = now
        return prometheus_client.generate_latest(self.registry)


class _Jobs(registry.Collector):
    """Figures of the jobs that exist, read when somebody looks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[core.Metric]:
        def gauge(name: str, text: str, labels: tuple[str, ...] = ("namespace", "job")) -> core.GaugeMetricFamily:
            return core.GaugeMetricFamily(f"elasticjob_{name}", text, labels=labels)

        phases = gauge("jobs", "Jobs by phase.", ("phase",))
        sizes = gauge("world_size", "Pods in the running world.")
        generations = gauge("generation", "Number of the present world.")
        trained = gauge("training_seconds", "Seconds with a complete, running world.")
        lost = gauge("lost_seconds", "Seconds without one, since the first world.")
        ratio = gauge("goodput_ratio", "Share of the time since the first world that was trained.")
        figures = self._metrics.jobs
        tally = Tally(one.phase for one in figures.values())
        for phase in api.Phase:
            phases.add_metric([str(phase)], tally[str(phase)])
        for job, one in figures.items():
            seconds_trained, seconds_lost = compute_goodput(one, self._metrics.now)
            sizes.add_metric(job, one.world_size)
            generations.add_metric(job, one.generation)
            trained.add_metric(job, seconds_trained)
            lost.add_metric(job, seconds_lost)
            if seconds_trained + seconds_lost > 0:
                ratio.add_metric(job, seconds_trained / (seconds_trained + seconds_lost))
        return (phases, sizes, generations, trained, lost, ratio)


class _Connections(registry.Collector):
    """What the hub counts: `kind:detail` → a counter with labels."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterable[core.Metric]:
        connections = core.GaugeMetricFamily(
            "elasticjob_hub_connections", "Agents that are connected.", value=self._hub.connections
        )
        events = core.CounterMetricFamily(
            "elasticjob_hub_events",
            "What happened at the hub: connections, losses, refusals, messages, directives.",
            labels=("event", "detail"),
        )
        for name, count in sorted(self._hub.counts.items()):
            event, _, detail = name.partition(":")
            events.add_metric([event, detail], count)
        return (connections, events)
