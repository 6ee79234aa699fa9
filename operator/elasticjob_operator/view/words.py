"""Formats numbers and states for people. Pure."""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator import api
from elasticjob_operator.client.model import Job
from elasticjob_operator.pool.throughput import find_worth
from elasticjob_operator.times import parse_time

PHASE_STYLES: Final = {
    "Running": "green",
    "Rescaling": "yellow",
    "Pending": "yellow",
    "Suspended": "blue",
    "Complete": "bold green",
    "Failed": "bold red",
}
_LONGEST: Final = 1e12  # seconds: the status may hold any number
RANK_STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def duration(seconds: float | None) -> str:
    """A duration in kubectl's style: the two largest units, or only one if it is large enough."""
    if seconds is None or not abs(seconds) < _LONGEST:  # neither NaN
        return "-"
    whole = int(seconds)
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours and days < 8 else f"{days}d"


def step_seconds(seconds: float) -> str:
    """The time of a step."""
    return f"{seconds:.2f}s" if seconds >= 1 else f"{1000 * seconds:.3g}ms"


def seconds_exact(seconds: float | None) -> str:
    """A short duration with the relevant digits, for example of a recovery."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < 120 else duration(seconds)


def age(then: float | None, now: float) -> str:
    return "-" if then is None else duration(now - then)


def ranks(found: range) -> str:
    """The ranks of a pod's processes: `0`, `0-7` or `-`."""
    if not found:
        return "-"
    return str(found.start) if found.stop - found.start == 1 else f"{found.start}-{found.stop - 1}"


def share(part: float, rest: float) -> str:
    total = part + rest
    return f"{100 * part / total:.1f}%" if total > 0 else "-"


def goodput(measured: str, trained: float, lost: float) -> str:
    """`97.0%`; `≤97.0%` if the script reports no steps, so that loading and waiting count as training."""
    known = share(trained, lost)
    bound = "≤" if measured != api.Measured.STEPS and known != "-" else ""
    return bound + known


def number(value: float) -> str:
    return f"{value:.6g}"


def steps_per_second(job: Job) -> float | None:
    """Derived from the remaining steps and the remaining time that the script reported."""
    progress = job.status.progress
    if progress is None or not progress.total_steps or progress.step is None:
        return None
    if not progress.estimated_remaining_seconds:
        return None
    return (progress.total_steps - progress.step) / progress.estimated_remaining_seconds


def bounds(job: Job) -> str:
    """`1-4`; the raw values if the spec is invalid."""
    spec = job.spec
    if spec is not None:
        return f"{spec.min_replicas}-{spec.max_replicas}"
    policy = _raw_spec(job).get("elasticPolicy")
    low, high = (
        (policy.get(key) for key in ("minReplicas", "maxReplicas")) if isinstance(policy, dict) else (None, None)
    )
    return f"{_raw_number(low)}-{_raw_number(high)}"


def wanted(job: Job) -> str:
    """The requested number of pods; the raw value if the spec is invalid."""
    spec = job.spec
    return _raw_number(_raw_spec(job).get("replicas")) if spec is None else str(spec.wanted)


def _raw_spec(job: Job) -> dict[str, Any]:
    spec = job.raw.get("spec")
    return spec if isinstance(spec, dict) else {}


def _raw_number(value: object) -> str:
    return str(value) if isinstance(value, int) else "?"


def progress_text(job: Job) -> str:
    """`40%` or `step 12`; `done` for a complete job, whose last report may be older than its last steps."""
    progress = job.status.progress
    if progress is None or progress.step is None:
        return "-"
    if job.status.is_true("Complete"):
        return "done"
    return f"{progress.percentage}%" if is_plausible(progress) else f"step {progress.step}"


def is_plausible(progress: api.ProgressStatus) -> bool:
    """Whether the script's total can be correct: some scripts continue after it."""
    known = progress.percentage is not None and progress.total_steps is not None and progress.step is not None
    return known and (progress.step or 0) <= (progress.total_steps or 0)


def costs(cost: api.CostStatus | None) -> tuple[str, str, str]:
    """What a job costs an hour, what it has cost, and what it will have."""
    if cost is None:
        return "-", "-", "-"
    return f"{cost.per_hour:.4g}", f"{cost.spent:.4g}", "-" if cost.expected is None else f"{cost.expected:.4g}"


def speeds_seen(scaling: api.ScalingStatus) -> dict[int, tuple[float, float]]:
    """By size: steps a second, and what one is worth. Where the batch grows: samples, worth less in larger batches."""
    seen = {one.size: (one.step_seconds, max(0, one.batch_size or 0)) for one in scaling.speeds if one.step_seconds > 0}
    least, noise = min((batch for _, batch in seen.values()), default=0), scaling.noise_scale
    if least == 0 or noise is None or noise < 0:
        return {size: (max(1, batch) / seconds, 1.0) for size, (seconds, batch) in seen.items()}
    return {size: (batch / seconds, find_worth(noise, batch, least)) for size, (seconds, batch) in seen.items()}


def speeds_by_size(scaling: api.ScalingStatus) -> list[str]:
    """`4:52/s` each; with what a step is worth, if that is not all: `4:52/s*81%`."""
    seen = speeds_seen(scaling)
    return [
        f"{size}:{speed:.3g}/s" + (f"*{worth:.0%}" if worth < 0.995 else "") for size, (speed, worth) in seen.items()
    ]


def gain_seen(scaling: api.ScalingStatus) -> float | None:
    """What the pool's last change of size brought to the speed, in percent; None where a size was not measured."""
    speeds = {size: speed * worth for size, (speed, worth) in speeds_seen(scaling).items()}
    before, after = speeds.get(scaling.previous_size or 0), speeds.get(scaling.size)
    return 100 * (after / before - 1) if before and after else None


def failure_head(last: api.FailureStatus, now: float) -> str:
    """`rank 1 in digits-worker-1 on node-1: exit code 1, generation 2, 80s ago`."""
    who = f"rank {last.rank} in {last.pod}" if last.rank is not None else (last.pod or "a worker")
    how = f"exit code {last.exit_code}" if last.exit_code is not None else (last.reason or "failed")
    how += f" ({last.signal})" if last.signal else ""
    where = f" on {last.node}" if last.node else ""
    return f"{who}{where}: {how}, generation {last.generation or '?'}, {age(parse_time(last.time), now)} ago"
