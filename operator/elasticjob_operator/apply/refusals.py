"""Interprets writes that the API server rejects. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_operator.rest.errors import ApiError

_TOLD_BY_REASON = ("NameTaken", "NotServed")


def is_refusal(error: ApiError) -> bool:
    """Whether an immediate retry is pointless."""
    return error.status in (400, 403, 413, 422) or error.reason in _TOLD_BY_REASON


def find_problem(refused: Sequence[ApiError]) -> tuple[str, str] | None:
    """(reason, message) of a condition: an invalid template, or a rejection that may be temporary."""
    for error in refused:
        if error.status in (400, 413, 422):
            return "InvalidTemplate", f"spec.template: the API server rejects the pod: {error.message}"
    if refused:
        reason = refused[0].reason if refused[0].reason in _TOLD_BY_REASON else "CreateForbidden"
        return reason, refused[0].message
    return None
