"""Tables of jobs, pods and events as rich tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from elasticjob_operator import api
from elasticjob_operator.client.history import Point, goodput_seconds
from elasticjob_operator.client.model import Happening, Job, Pod
from elasticjob_operator.history.faulty_nodes import NodeRecord
from elasticjob_operator.text import cut, cut_lines
from elasticjob_operator.times import parse_time
from elasticjob_operator.view import words
from elasticjob_operator.view.plain import PlainTable
from elasticjob_operator.view.sparkline import sparkline

_MOST_LINES: Final = 20  # of an event's message: whoever may write events writes thousands of them ...
_MOST_CHARACTERS: Final = 2**20  # ... of which all together have so many; of more, each has the same part


def phase(job: Job) -> Text:
    return Text(job.phase, style=words.PHASE_STYLES.get(job.phase, ""))


def list_jobs(jobs: Sequence[Job], now: float, *, namespaces: bool = False, wide: bool = False) -> PlainTable:
    more = ("GENERATION", "RATE", "ETA", "GOODPUT", "RECOVERY", "REASON") if wide else ()
    first = ("NAMESPACE",) if namespaces else ()
    table = PlainTable(*first, "NAME", "PHASE", "WORLD", "WANTED", "BOUNDS", "PROGRESS", "RESTARTS", "AGE", *more)
    for job in jobs:
        status = job.status
        row: list[str | Text] = [job.namespace] if namespaces else []
        row += [
            job.name,
            phase(job),
            str(status.rendezvous.world_size),
            words.wanted(job),
            words.bounds(job),
            words.progress_text(job),
            str(status.restarts.total),
            words.age(job.created, now),
        ]
        table.add_row(*row, *(_wide_cells(job, now) if wide else ()))
    return table


def _wide_cells(job: Job, now: float) -> list[str]:
    status = job.status
    rate = words.steps_per_second(job)
    eta = status.progress.estimated_remaining_seconds if status.progress else None
    return [
        str(status.rendezvous.generation),
        f"{rate:.3g}/s" if rate is not None else "-",
        words.duration(eta),
        words.goodput(status.goodput.measured, *goodput_seconds(job, now)),
        words.seconds_exact(status.goodput.last_recovery_seconds),
        reason_of(job) or "-",
    ]


def reason_of(job: Job) -> str:
    """The most important condition, in short form."""
    for type in ("Failed", "Complete", "Suspended", "Degraded"):
        found = job.status.condition(type)
        if found is not None and found.status == "True":
            return f"{type}: {found.reason}"
    running = job.status.condition("Running")
    return running.reason if running is not None and running.status != "True" else ""


def list_members(
    job: Job,
    pods: Sequence[Pod],
    *,
    usage: Mapping[str, Mapping[str, str]] | None = None,
    limit: int | None = None,
) -> PlainTable:
    """The members of the world by rank, then other pods. Rows beyond `limit` are only counted."""
    more = ("CPU", "MEMORY") if usage is not None else ()
    table = PlainTable("RANKS", "POD", "NODE", "STATE", *more)
    by_name = {pod.name: pod for pod in pods}
    ranges = job.rank_ranges()
    outside = [pod.name for pod in pods if pod.name not in ranges]
    nodes = {member.pod: member.node for member in job.members}
    rows = [*ranges, *outside]
    for name in rows[:limit]:
        pod = by_name.get(name)
        state = pod.phase if pod else "gone"
        if name in outside and state == "Running":
            state = "outside the world"
        style = "green" if state == "Running" else "red" if state in ("gone", "Failed") else "yellow"
        cells = [(usage.get(name) or {}).get(kind, "-") for kind in ("cpu", "memory")] if usage is not None else []
        node = (pod.node if pod else "") or nodes.get(name) or "-"
        table.add_row(words.ranks(ranges.get(name, range(0))), name, node, Text(state, style=style), *cells)
    if limit is not None and len(rows) > limit:
        table.add_row("…", f"and {len(rows) - limit} more")
    return table


def list_checkpoints(job: Job, now: float) -> PlainTable:
    """The last checkpoint of each tier, and each save in the archive."""
    table = PlainTable("WHERE", "STEP", "AGE", "SIZE", "FILES")
    progress, archive = job.status.progress, job.status.archive
    for one in progress.checkpoints if progress is not None else ():
        if one.tier != api.Tier.ARCHIVE or archive is None:
            table.add_row(one.tier.lower(), "", words.age(parse_time(one.time), now), "", "")
    for save in archive.saves if archive is not None else ():
        step = "" if save.step is None else str(save.step)
        age = words.age(parse_time(save.time), now) if save.time else ""
        table.add_row("archive", step, age, f"{save.bytes / 2**20:.1f} MiB", str(save.files))
    return table


def list_events(events: Sequence[Happening], now: float) -> PlainTable:
    table = PlainTable("AGE", "TYPE", "REASON", "OBJECT", "MESSAGE")
    table.columns[-1].no_wrap = False
    total = sum(len(event.message) for event in events)
    longest = total if total <= _MOST_CHARACTERS else _MOST_CHARACTERS // len(events)
    for event in events:
        style = "yellow" if event.type == "Warning" else ""
        count = f" (x{event.count})" if event.count > 1 else ""
        age = words.age(event.time, now)
        message = Text(cut_lines(cut(event.message, longest), _MOST_LINES).replace("\t", " ") + count)
        table.add_row(age, Text(event.type, style=style), event.reason, event.object, message)
    return table


def list_top(jobs: Sequence[Job], now: float, sizes: Mapping[str, Sequence[Point]] | None = None) -> PlainTable:
    """Throughput and goodput of the jobs, the busiest first.

    `sizes`: of their worlds over time, by UID, as far as events tell; None if they could not be read.
    """
    pooled = any(job.status.scaling is not None and job.status.scaling.pool for job in jobs)
    paid = any(job.status.scaling is not None and job.status.scaling.cost for job in jobs)
    cost = ("COST/H", "SPENT", "COST AT END") if paid else ()
    more = ("POOL", "MODEL", "EXPECTED", "SEEN", *cost, "WHY") if pooled else ()
    course = ("LAST HOUR",) if sizes else ()
    titles = ("PROCESSES", "STEP", "RATE", "GOODPUT", "RESCALES", "RECOVERY")
    table = PlainTable("NAME", "PHASE", "WORLD", *course, *titles, *more)
    for job in sorted(jobs, key=lambda j: (-j.status.rendezvous.processes, j.name)):
        status = job.status
        rate = words.steps_per_second(job)
        step = status.progress.step if status.progress else None
        table.add_row(
            job.name,
            phase(job),
            str(status.rendezvous.world_size),
            *([_course(job, sizes, now)] if sizes else ()),
            str(status.rendezvous.processes),
            "-" if step is None else str(step),
            f"{rate:.3g}/s" if rate is not None else "-",
            words.goodput(status.goodput.measured, *goodput_seconds(job, now)),
            str(status.goodput.rescales),
            words.seconds_exact(status.goodput.last_recovery_seconds),
            *(_pool_cells(job, paid=paid) if pooled else ()),
        )
    return table


def _course(job: Job, sizes: Mapping[str, Sequence[Point]], now: float) -> str:
    end = None if job.status.finished else now
    return sparkline(sizes.get(job.uid, ()), width=16, steps=True, end=end) or "-"


def _pool_cells(job: Job, *, paid: bool) -> list[str]:
    """The pool, the speeds that its model rests on, what the last change was to bring and has brought, and the cost."""
    scaling = job.status.scaling or api.ScalingStatus()
    model = " ".join(words.speeds_by_size(scaling))
    expected = scaling.expected_gain_percent
    seen = words.gain_seen(scaling)
    return [
        scaling.pool or "-",
        model or "-",
        "-" if expected is None else f"{expected:+d} %",
        "-" if seen is None else f"{seen:+.0f} %",
        *(words.costs(scaling.cost) if paid else ()),
        scaling.reason or "-",
    ]


def list_nodes(records: Sequence[NodeRecord], now: float) -> PlainTable:
    """Nodes with faults, the worst first."""
    table = PlainTable("NODE", "SCORE", "FAULTS", "LAST", "AVOIDED", "JOBS")
    for one in records:
        jobs = ", ".join(one.jobs[:3]) + (f" and {len(one.jobs) - 3} more" if len(one.jobs) > 3 else "")
        table.add_row(
            one.node,
            f"{one.score:.1f}",
            str(one.faults),
            words.age(one.last, now),
            "yes" if one.is_faulty else "no",
            jobs,
        )
    return table
