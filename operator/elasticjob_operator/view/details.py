"""The details of one job: `describe`, the live view of `watch` and the last failure. Returns rich renderables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.client.history import History, World, goodput_seconds, list_worlds
from elasticjob_operator.client.model import Happening, Job, Pod
from elasticjob_operator.history.goodput import list_losses
from elasticjob_operator.membership import losses
from elasticjob_operator.text import clean
from elasticjob_operator.times import parse_time
from elasticjob_operator.view import tables, words
from elasticjob_operator.view.plain import PlainTable
from elasticjob_operator.view.sparkline import sparkline


def describe(job: Job, pods: Sequence[Pod], events: Sequence[Happening], now: float) -> RenderableType:
    parts: list[RenderableType] = [_facts(job, now)]
    parts += _section("Conditions", _conditions(job, now) if job.status.conditions else None)
    parts += _section("Members", tables.list_members(job, pods) if job.members or pods else None)
    if job.status.timeline:
        parts += _section("Worlds", generations(list_worlds(job.status)[-10:], now))
    if job.status.last_failure is not None:
        parts += _section("Last failure", failure(job.status.last_failure, now))
    if job.status.diagnosis is not None:
        parts += _section("Last hang", diagnosis(job.status.diagnosis, now))
    if job.status.stragglers:
        parts += _section("Slow ranks", stragglers(job.status.stragglers, now))
    fired = [one for one in job.status.incidents if one.count]
    parts += _section("Incidents", incidents(fired, now)) if fired else []
    if job.status.preflight:
        parts += _section("Preflight", preflight(job.status.preflight[:16]))
    if len(job.status.failures) > 1:
        parts += _section("Last failure of each rank", failures(job.status.failures[:16], now))
    parts += _section("Events", tables.list_events(events[-12:], now) if events else None)
    return Group(*parts)


def _section(title: str, body: RenderableType | None) -> list[RenderableType]:
    return [Text(f"{title}:"), Padding(body if body is not None else Text("none", style="dim"), (0, 0, 0, 2))]


def _facts(job: Job, now: float) -> Table:
    status, spec = job.status, job.spec
    world, goodput = status.rendezvous, status.goodput
    trained, lost = goodput_seconds(job, now)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Name:", job.name)
    table.add_row("Namespace:", job.namespace)
    table.add_row("Phase:", tables.phase(job))
    table.add_row("Age:", words.age(job.created, now))
    if status.template is not None:
        table.add_row("Template:", _template_text(status.template))
    if spec is None:
        table.add_row("Spec:", Text("waits for its template, or is invalid; the conditions say why", style="red"))
    else:
        table.add_row("Replicas:", f"{spec.wanted} wanted, {spec.min_replicas} to {spec.max_replicas} allowed")
        table.add_row("Rendezvous:", spec.rendezvous.backend.value)
    code = (job.metadata.get("annotations") or {}).get(names.ANNOTATION_CODE)
    if code:
        table.add_row("Code:", clean(str(code)))
    if status.code is not None:
        table.add_row("Revision:", _revision_text(status.code))
    table.add_row("World:", _world_text(world))
    if spec is not None and spec.layout.pods > 1 and world.world_size:
        table.add_row("Copies:", _copies_text(spec.cut, world))
    if status.progress is not None:
        last = " (last report)" if status.finished else ""
        table.add_row("Progress:", _progress_line(status.progress) + last)
        if status.progress.checkpoints:
            table.add_row("Checkpoints:", _checkpoints_text(status.progress.checkpoints, now))
    restarts = status.restarts
    table.add_row("Restarts:", f"{restarts.total} by workers, {restarts.infrastructure} by infrastructure (free)")
    recovery = words.seconds_exact(goodput.last_recovery_seconds)
    table.add_row(
        "Goodput:",
        f"{words.share(trained, lost)} ({words.duration(trained)} trained, {words.duration(lost)} lost), "
        f"{goodput.rescales} rescales, last recovery {recovery}"
        + (
            ""
            if goodput.measured is api.Measured.STEPS
            else "; the script reports no steps: less may have been trained"
        ),
    )
    lost_by = [f"{category.replace('_', ' ')} {words.duration(s)}" for category, s in list_losses(status) if s >= 0.5]
    if lost_by:
        table.add_row("Lost time:", ", ".join(lost_by))
    if goodput.faults:
        mean, between = goodput.mean_recovery_seconds, goodput.mean_seconds_between_faults
        table.add_row(
            "Faults:",
            f"{goodput.faults}, mean recovery {words.seconds_exact(mean)}, "
            f"{words.duration(between or 0.0)} of training for each",
        )
    return table


def _revision_text(code: api.CodeStatus) -> str:
    of = f"{code.revision}, sha256:{code.digest}" if code.digest else f"{code.revision}, the code above"
    return of if code.proven else f"{of}; it has made no step yet"


def _template_text(taken: api.TemplateStatus) -> str:
    source = f"{taken.name} of namespace {taken.namespace}, generation {taken.generation}"
    return f"{source}: {', '.join(taken.fields) or 'nothing of it'}"


def _world_text(world: api.RendezvousStatus) -> str:
    if not world.world_size:
        return "none" + (f", the last one was generation {world.generation}" if world.generation else "")
    why = f": {names.describe_cause(world.reason)}" if world.reason else ""
    return f"generation {world.generation}, {world.world_size} pods, {world.processes} processes{why}"


def _copies_text(cut: api.Cut, world: api.RendezvousStatus) -> str:
    """What the loss of a pod costs, if it has no spare."""
    pods = [member.uid for member in world.members]
    loss = losses.foresee(pods, pods[-1:], cut=cut)
    copies = f"{world.processes // cut.parts} of the model, of {cut.parts} ranks each"
    return f"{copies}; if a pod is lost, {len(loss.members)} train on and {len(loss.waiting)} wait for another"


def _progress_line(progress: api.ProgressStatus) -> str:
    step = f"step {progress.step if progress.step is not None else '?'}"
    total = f" of {progress.total_steps} ({progress.percentage}%)" if words.is_plausible(progress) else ""
    left = progress.estimated_remaining_seconds
    eta = f", {words.duration(left)} left" if left is not None else ""
    rates = (("samples", progress.samples_per_second), ("tokens", progress.tokens_per_second))
    speed = "".join(f", {words.number(rate)} {name}/s" for name, rate in rates if rate is not None)
    use = f", {progress.mfu:.1%} MFU" if progress.mfu is not None else ""
    metrics = "".join(f", {m.name} {words.number(m.value)}" for m in progress.metrics)
    wrong = "".join(f", {name} not finite" for name in progress.not_finite)
    return step + total + eta + speed + use + metrics + wrong


def _checkpoints_text(saved: Sequence[api.SavedStatus], now: float) -> str:
    return ", ".join(f"{one.tier.lower()} {words.age(parse_time(one.time), now)} ago" for one in saved)


def _conditions(job: Job, now: float) -> Table:
    table = PlainTable("TYPE", "STATUS", "REASON", "AGE", "MESSAGE")
    table.columns[-1].no_wrap = False
    for found in job.status.conditions:
        bad = found.type in ("Failed", "Degraded") and found.status == "True"
        table.add_row(
            Text(found.type, style="red" if bad else ""),
            found.status,
            found.reason,
            words.age(parse_time(found.last_transition_time), now),
            Text(found.message),
        )
    return table


def failure(last: api.FailureStatus, now: float) -> RenderableType:
    """The last failure: pod and rank, cause, traceback and the end of the log."""
    parts = [Text(words.failure_head(last, now), style="red")]
    if last.message:
        parts.append(Text(last.message))
    if last.traceback:
        parts.append(Text(last.traceback.rstrip()))
    if last.log_tail:
        parts += [Text("end of its log:", style="dim"), Text(last.log_tail.rstrip())]
    return Group(*parts)


def diagnosis(last: api.DiagnosisStatus, now: float) -> RenderableType:
    """The last hang in short."""
    who = f"rank {last.rank} in {last.pod}" + (f" on {last.node}" if last.node else "")
    what = f"{who} held up the others" if last.rank is not None else "all ranks waited, and none is known to be behind"
    head = f"generation {last.generation} hung {words.age(parse_time(last.time), now)} ago: {what}"
    return Group(Text(head, style="red"), Text(last.summary))


def stragglers(found: Sequence[api.StragglerStatus], now: float) -> Table:
    """One line for each slow rank: its time for a step without waiting, and that of the others."""
    table = PlainTable("RANK", "POD", "NODE", "STEP", "OTHERS", "SLOWER", "SINCE", "REPLACED")
    for one in found:
        table.add_row(
            str(one.rank),
            one.pod,
            one.node or "-",
            words.step_seconds(one.own_seconds),
            words.step_seconds(one.others_seconds),
            f"{one.slowdown:.1f}x",
            words.age(parse_time(one.since), now),
            words.age(parse_time(one.replace_time), now) if one.replace_time else "-",
        )
    return table


def incidents(found: Sequence[api.IncidentStatus], now: float) -> Table:
    """One line for each rule that has fired: how often, what was done about it, and what it found last."""
    table = PlainTable("RULE", "TIMES", "LAST", "NOW", "ACTION", "WHAT")
    table.columns[-1].no_wrap = False
    for one in found:
        table.add_row(
            one.rule,
            str(one.count),
            words.age(parse_time(one.last_time), now),
            "sick" if one.since else "over",
            one.last_action or "-",
            one.message,
        )
    return table


def preflight(found: Sequence[api.PreflightStatus]) -> Table:
    """One line for each node: its best link to another one."""
    table = PlainTable("NODE", "ROUND TRIP", "BANDWIDTH", "RESULT")
    table.columns[-1].no_wrap = False
    for one in found:
        trip = "-" if one.round_trip_seconds is None else f"{one.round_trip_seconds * 1e3:.1f} ms"
        rate = "-" if one.bytes_per_second is None else f"{one.bytes_per_second / 2**20:.0f} MiB/s"
        table.add_row(one.node, trip, rate, "passed" if one.passed else f"failed: {one.message}")
    return table


def failures(found: Sequence[api.FailureStatus], now: float) -> Table:
    """One line for the last failure of each rank; the traceback's last line where there is one."""
    table = PlainTable("RANK", "POD", "NODE", "EXIT", "AGE", "ERROR")
    table.columns[-1].no_wrap = False
    for one in found:
        last = (one.traceback or "").strip().rpartition("\n")[2] or one.message or one.reason or ""
        table.add_row(
            "-" if one.rank is None else str(one.rank),
            one.pod or "-",
            one.node or "-",
            one.signal or ("-" if one.exit_code is None else str(one.exit_code)),
            words.age(parse_time(one.time), now),
            Text(last),
        )
    return table


def live(job: Job, pods: Sequence[Pod], past: History, now: float, *, rows: int = 40) -> RenderableType:
    """One screen: phase, progress, small plots, members and the latest generations."""
    status = job.status
    head = Text.assemble(
        (job.name, "bold"),
        "  ",
        tables.phase(job),
        f"  {_world_text(status.rendezvous)}",
        f"  wanted {words.wanted(job)}",
    )
    trained, lost = goodput_seconds(job, now)
    goodput = Text(
        f"goodput {words.goodput(status.goodput.measured, trained, lost)}  rescales {status.goodput.rescales}  "
        f"last recovery {words.seconds_exact(status.goodput.last_recovery_seconds)}  "
        f"restarts {status.restarts.total}  age {words.age(job.created, now)}",
        style="dim",
    )
    parts: list[RenderableType] = [head, goodput]
    reason = _find_problem(job)
    if reason:
        parts.append(Text(reason, style="red" if status.is_true("Failed") else "yellow"))
    if status.progress is not None:
        parts.append(_progress_bar(status.progress))
    parts += _small_plots(past, now)
    spare = max(6, rows - len(parts) - 10)
    parts += [Text(), tables.list_members(job, pods, limit=spare), Text(), generations(past.worlds[-6:], now)]
    return Group(*parts)


def _small_plots(past: History, now: float) -> list[RenderableType]:
    """World size, throughput and the first metric on one line; nothing where nothing changed yet."""
    first = next(iter(past.metrics.items()), ("", ()))
    shown = {
        "pods": sparkline(past.sizes, steps=True, end=now),
        "steps/s": sparkline(past.throughput),
        first[0]: sparkline(first[1]),
    }
    found = [f"{name} {plot}" for name, plot in shown.items() if len(plot) > 1]
    return [Text("  ".join(found), no_wrap=True, overflow="crop")] if found else []


def _find_problem(job: Job) -> str:
    for type in ("Failed", "Degraded"):
        found = job.status.condition(type)
        if found is not None and found.status == "True":
            return f"{type}: {found.reason}: {found.message}"
    return ""


def _progress_bar(progress: api.ProgressStatus) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    text = Text(_progress_line(progress))
    if words.is_plausible(progress) and progress.total_steps:
        grid.add_row(ProgressBar(total=progress.total_steps, completed=progress.step or 0, width=40), text)
    else:
        grid.add_row(text)
    return grid


def generations(worlds: Sequence[World], now: float) -> Table:
    table = PlainTable("GENERATION", "AGE", "PODS", "SECONDS", "CAUSE")
    for world in reversed(worlds):
        table.add_row(
            str(world.generation),
            words.age(world.time, now),
            str(world.size),
            words.seconds_exact(world.seconds),
            Text(": ".join(filter(None, (world.cause, world.who))) or "-"),
        )
    return table


def change_line(job: Job, before: Job | None) -> str | None:
    """A change in one line, for a watch without a terminal; None if it is not worth a line."""
    parts = []
    status = job.status
    if before is None or before.phase != job.phase:
        parts.append(job.phase)
    if before is None or before.status.rendezvous.generation != status.rendezvous.generation:
        parts.append(_world_text(status.rendezvous))
    if status.progress is not None and (before is None or before.status.progress != status.progress):
        parts.append(_progress_line(status.progress))
    problem = _find_problem(job)
    if problem and (before is None or _find_problem(before) != problem):
        parts.append(problem)
    return f"{job.name}: {'; '.join(parts)}" if parts else None
