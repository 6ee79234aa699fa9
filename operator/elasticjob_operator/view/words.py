"""Numbers and states as people read them. Pure."""

from __future__ import annotations

from typing import Final

from elasticjob_operator.client.model import Job

PHASE_STYLES: Final = {
    "Running": "green",
    "Rescaling": "yellow",
    "Pending": "yellow",
    "Suspended": "blue",
    "Complete": "bold green",
    "Failed": "bold red",
}
RANK_STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def duration(seconds: float | None) -> str:
    """As kubectl writes ages: the two largest units, or one where it is big enough."""
    if seconds is None:
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


def seconds_exact(seconds: float | None) -> str:
    """Short times with the digits that matter: a recovery is a second or a minute."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < 120 else duration(seconds)


def age(then: float | None, now: float) -> str:
    return "-" if then is None else duration(now - then)


def ranks(found: range) -> str:
    """`0`, `0-7` or `-`: the ranks of a pod's processes."""
    if not found:
        return "-"
    return str(found.start) if len(found) == 1 else f"{found.start}-{found.stop - 1}"


def share(part: float, rest: float) -> str:
    total = part + rest
    return f"{100 * part / total:.1f}%" if total > 0 else "-"


def number(value: float) -> str:
    return f"{value:.6g}"


def steps_per_second(job: Job) -> float | None:
    """From what is left and how long it takes, as the script itself measured it."""
    progress = job.status.progress
    if progress is None or not progress.total_steps or progress.step is None:
        return None
    if not progress.estimated_remaining_seconds:
        return None
    return (progress.total_steps - progress.step) / progress.estimated_remaining_seconds


def bounds(job: Job) -> str:
    spec = job.spec
    return "?" if spec is None else f"{spec.min_replicas}-{spec.max_replicas}"


def wanted(job: Job) -> str:
    spec = job.spec
    return "?" if spec is None else str(spec.wanted)


def progress_text(job: Job) -> str:
    progress = job.status.progress
    if progress is None or progress.step is None:
        return "-"
    if progress.percentage is not None:
        return f"{progress.percentage}%"
    return f"step {progress.step}"
