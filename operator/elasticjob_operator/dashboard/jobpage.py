"""The page of one job: named regions of HTML, of which a viewer gets those that changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.client import Happening, Job, Pod
from elasticjob_operator.client.history import Sample, build_history, list_reports
from elasticjob_operator.dashboard import shell
from elasticjob_operator.dashboard.listpage import job_path, phase
from elasticjob_operator.html_report import build_picture, build_table, escape
from elasticjob_operator.times import parse_time
from elasticjob_operator.view import words

PAGE_MEMBERS: Final = 100
MOST_EVENTS: Final = 100
MOST_OF_POOL: Final = 100  # jobs
# Regions by their headings, in the order of the page. Those without a heading are part of the head.
REGIONS: Final[Mapping[str, str]] = {
    "problem": "",
    "state": "",
    "controls": "",
    "tiles": "",
    "plots": "",
    "lost": "Lost time",
    "pool": "Pool",
    "incidents": "Incidents",
    "worlds": "Generations",
    "failures": "Failures",
    "members": "Pods and ranks",
    "events": "Events",
}
OPTIONAL: Final = frozenset({"pool", "incidents"})  # whose heading is hidden where there is nothing


@dataclass(frozen=True)
class Seen:
    """What is known of a job besides its status. None: not read yet, or not allowed (`problems` says why)."""

    pods: Sequence[Pod] | None = None
    events: Sequence[Happening] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)  # by what could not be read: pods, events, job
    job: Job | None = None  # of which little is kept


def build_regions(
    job: Job,
    seen: Seen,
    samples: Sequence[Sample],
    pool: Sequence[Job],
    *,
    now: float,
    form_key: str,
    members_page: int = 1,
    problem: str = "",
) -> dict[str, str]:
    """HTML by region."""
    picture = build_picture(
        build_history(samples, seen.events or (), job.created, reports=list_reports(job.status)),
        samples[-1] if samples else None,
        now,
    )
    return {
        "problem": shell.build_problem(problem),
        "state": _state(job, now),
        "controls": _controls(job, form_key) if form_key else "",
        "tiles": picture.tiles,
        "plots": picture.plots,
        "lost": picture.lost,
        "pool": _pool(job, pool),
        "incidents": _incidents(job),
        "worlds": picture.worlds,
        "failures": _failures(job) + picture.notable,
        "members": _members(job, seen, members_page),
        "events": _events(seen),
    }


def build_job(namespace: str, name: str, regions: Mapping[str, str], *, rank: str = "") -> str:
    """The content of the page around its regions."""
    parts = [f'<h1>{escape(name)} <span class="soft">{escape(namespace)}</span></h1>']
    for region, heading in REGIONS.items():
        content = f'<div id="{region}" data-region>{regions[region]}</div>'
        if not heading:
            parts.append(content)
            continue
        hidden = " hidden" if region in OPTIONAL and not regions[region] else ""
        parts.append(
            f'<section aria-labelledby="h-{region}"{hidden}><h2 id="h-{region}">{heading}</h2>{content}</section>'
        )
    parts.insert(-2, _logs(job_path(namespace, name), rank))
    return "".join(parts)


def _state(job: Job, now: float) -> str:
    status = job.status
    reason = ""
    for type in ("Failed", "Complete", "Incident", "Degraded", "Warning", "NoProgress", "Suspended", "Running"):
        found = status.condition(type)
        if found is not None and (found.status == "True") == (type != "Running") and (found.reason or found.message):
            bad = ' class="bad"' if type == "Failed" else ""
            told = ": ".join(part for part in (type, found.reason, found.message) if part)
            reason = f"<p{bad}>{escape(told)}</p>"
            break
    world = status.rendezvous
    facts = [
        f"{world.world_size} pods, {world.processes} processes, generation {world.generation}",
        f"{words.wanted(job)} wanted, {words.bounds(job)} allowed",
    ]
    if status.scaling is not None and status.scaling.reason:
        facts.append(f"size {status.scaling.size}: {status.scaling.reason}")
    age = shell.since(job.created, words.age(job.created, now))
    return f"<p>{phase(job)} {escape('; '.join(facts))}; age {age}</p>{reason}"


def _controls(job: Job, form_key: str) -> str:
    spec = job.spec
    if job.status.finished or spec is None:
        return ""
    path = escape(job_path(job.namespace, job.name))
    key = f'<input type="hidden" name="key" value="{escape(form_key)}">'
    suspended = spec.run_policy.suspend
    action, label = ("resume", "Resume") if suspended else ("suspend", "Suspend")
    auto = '<button id="do-auto" name="replicas" value="auto">Let the pool choose</button>' if spec.is_pooled else ""
    return (
        f'<form method="post" action="{path}/scale" data-act>{key}'
        '<label for="replicas">Pods</label> '
        f'<input id="replicas" name="replicas" type="number" required value="{spec.wanted}" min="{spec.min_replicas}" '
        f'max="{spec.max_replicas}"> <button id="do-scale">Scale</button></form>'
        + (f'<form method="post" action="{path}/scale" data-act>{key}{auto}</form>' if auto else "")
        + f'<form method="post" action="{path}/{action}" data-act>{key}<button id="do-{action}">{label}</button></form>'
        '<p id="said" role="status"></p>'
    )


def _pool(job: Job, pool: Sequence[Job]) -> str:
    scaling = job.status.scaling
    if scaling is None or not scaling.pool:
        return ""
    gain, expected = words.gain_seen(scaling), scaling.expected_gain_percent
    facts = f"{scaling.pool}: this job has {scaling.size} pods"
    facts += f", expected to change its speed by {expected:+d} %" if expected is not None else ""
    facts += f" (seen: {gain:+.0f} %)" if gain is not None else ""
    if scaling.cost is not None:
        hourly, spent, expected_cost = words.costs(scaling.cost)
        facts += f"; it costs {hourly} an hour, {spent} so far"
        facts += "" if scaling.cost.expected is None else f", {expected_cost} at its end"
    rows = []
    for other in sorted(pool, key=lambda other: other.uid != job.uid)[:MOST_OF_POOL]:
        mine = other.status.scaling or api.ScalingStatus()
        here = ' aria-current="true"' if other.uid == job.uid else ""
        speeds = ", ".join(one.replace(":", ": ") for one in words.speeds_by_size(mine))
        rows.append(
            f'<tr{here}><td><a href="{escape(job_path(other.namespace, other.name))}">{escape(other.name)}</a></td>'
            f'<td class="n">{mine.size}</td><td class="n">{mine.wanted}</td><td>{escape(speeds or "-")}</td>'
            f"<td>{escape(mine.reason or '-')}</td></tr>"
        )
    left_out = f"<p>{len(pool) - len(rows):,} more jobs share this pool.</p>" if len(pool) > len(rows) else ""
    table = build_table(("Job", "Pods", "Wanted", "Steps a second by size", "Why"), rows)
    return f"<p>{escape(facts)}.</p>{table}{left_out}"


def _incidents(job: Job) -> str:
    """What the rules of the job have found, the latest first."""
    found = [one for one in job.status.incidents if one.count]
    rows = []
    for one in sorted(found, key=lambda one: (one.since is not None, one.last_time or ""), reverse=True):
        state = '<td class="bad">sick</td>' if one.since else "<td>over</td>"
        rows.append(
            f'<tr><td class="n">{_moment(parse_time(one.last_time))}</td><td>{escape(one.rule)}</td>{state}'
            f'<td class="n">{one.count}</td><td class="n">{_number(one.rank)}</td><td>{escape(one.pod or "-")}</td>'
            f"<td>{escape(one.node or '-')}</td><td>{escape(one.device or '-')}</td>"
            f'<td class="n">{_number(one.step)}</td>'
            f"<td>{escape(one.last_action or '-')}</td><td>{escape(one.message)}</td></tr>"
        )
    head = ("Last (UTC)", "Rule", "Now", "Times", "Rank", "Pod", "Node", "Device", "Step", "Action", "What it found")
    return build_table(head, rows) if rows else ""


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _failures(job: Job) -> str:
    last = job.status.last_failure
    if last is None:
        return '<p class="soft">No failure is known.</p>'
    when = parse_time(last.time)
    head = words.failure_head(last, when or 0.0).rpartition(", ")[0]
    parts = [f'<p class="bad">{escape(head)}, {_moment(when)}</p>']
    parts += [f"<p>{escape(last.message)}</p>"] if last.message else []
    for title, text in (("Traceback", last.traceback), ("End of its log", last.log_tail)):
        if text:
            parts.append(f'<h3>{title}</h3><pre tabindex="0" aria-label="{title}">{escape(text.rstrip())}</pre>')
    return "".join(parts)


def _members(job: Job, seen: Seen, page: int) -> str:
    pods = seen.pods
    by_name = {pod.name: pod for pod in pods or ()}
    ranges = job.rank_ranges()
    nodes = {member.pod: member.node for member in job.members}
    names = [*ranges, *(pod.name for pod in pods or () if pod.name not in ranges)]
    last = max(1, -(-len(names) // PAGE_MEMBERS))
    page = min(max(1, page), last)
    rows = []
    for name in names[(page - 1) * PAGE_MEMBERS : page * PAGE_MEMBERS]:
        pod, ranks = by_name.get(name), ranges.get(name, range(0))
        state = pod.phase if pod else "gone" if pods is not None else "?"
        state = "outside the world" if not ranks and state == "Running" else state
        node = (pod.node if pod else "") or nodes.get(name) or "-"
        logs = (
            f'<a id="log-{ranks.start}" data-rank="{ranks.start}" href="?rank={ranks.start}#logs">logs</a>'
            if ranks
            else ""
        )
        rows.append(
            f'<tr><td class="n">{words.ranks(ranks)}</td><td>{escape(name)}</td><td>{escape(node)}</td>'
            f"<td>{escape(state)}</td><td>{logs}</td></tr>"
        )
    problem = seen.problems.get("pods")
    note = f'<p class="problem">{escape(problem)}</p>' if problem else ""
    links = [
        f'<a id="members-{i}" href="?members={i}#members"{" aria-current=page" if i == page else ""}>{i}</a>'
        for i in range(1, last + 1)
    ]
    pages = f'<nav class="pages" aria-label="Pages of pods">{"".join(links)}</nav>' if last > 1 else ""
    table = build_table(("Ranks", "Pod", "Node", "State", "Logs"), rows) if rows else '<p class="soft">No pods.</p>'
    return note + table + pages


def _events(seen: Seen) -> str:
    if problem := seen.problems.get("events"):
        return f'<p class="problem">{escape(problem)}</p>'
    if not seen.events:
        return '<p class="soft">No events. The API server keeps them for an hour by default.</p>'
    rows = []
    for event in reversed(seen.events[-MOST_EVENTS:]):
        style = ' class="bad"' if event.type == "Warning" else ""
        count = f" (x{event.count})" if event.count > 1 else ""
        rows.append(
            f'<tr><td class="n">{_moment(event.time)}</td><td{style}>{escape(event.reason)}</td>'
            f"<td>{escape(event.object)}</td><td>{escape(event.message + count)}</td></tr>"
        )
    return build_table(("At (UTC)", "Reason", "Object", "Message"), rows)


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    then = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{then.isoformat()}">{then:%Y-%m-%d %H:%M:%S}</time>'


def _logs(path: str, rank: str) -> str:
    return (
        '<section aria-labelledby="h-logs" id="logs"><h2 id="h-logs">Logs</h2>'
        f'<form data-logs="{escape(path)}/logs">'
        f'<label for="rank">Rank</label> <input id="rank" name="rank" type="number" min="0" value="{escape(rank)}" '
        'placeholder="all"> '
        '<label for="find">Search</label> <input id="find" type="search" autocomplete="off" spellcheck="false"> '
        '<label><input id="follow" type="checkbox" checked> Follow</label> '
        '<button id="show-logs">Show logs</button> <span id="log-state" role="status" class="soft"></span></form>'
        '<pre id="log" tabindex="0" aria-label="Log lines" hidden></pre></section>'
    )
