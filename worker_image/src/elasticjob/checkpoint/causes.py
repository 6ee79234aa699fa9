"""The cause of a failed checkpoint, in one line: torch wraps the errors of all ranks in an error of its own."""

from __future__ import annotations


def find_culprit(error: BaseException, rank: int) -> tuple[int, str]:
    """The rank that failed, and the cause, unwrapped from torch's error for all ranks."""
    for failed, failure in getattr(error, "failures", {}).items():
        return failed, find_root_cause(failure[0] if isinstance(failure, tuple) else failure)
    return rank, find_root_cause(error)


def find_root_cause(error: BaseException) -> str:
    """The root cause in one line."""
    if getattr(error, "failures", None):
        return find_culprit(error, 0)[1]
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
