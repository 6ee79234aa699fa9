"""Interprets writes that the API server rejects. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from elasticjob_operator.plan.values import Kind
from elasticjob_operator.rest.errors import ApiError

_NO_AUTOSCALER: Final = "AutoscalerRefused"
_TOLD_BY_REASON = ("NameTaken", "NotServed", "ObjectRejected", _NO_AUTOSCALER)


def is_refusal(error: ApiError) -> bool:
    """Whether an immediate retry is pointless."""
    return error.status in (400, 403, 413, 422) or error.reason in _TOLD_BY_REASON


def name_child(kind: Kind, error: ApiError) -> ApiError:
    """The rejection of an object that is no pod, told as such; any other error is returned as it is."""
    if kind is Kind.AUTOSCALER:
        return _name_autoscaler(error)
    if error.status not in (400, 413, 422):
        return error
    return ApiError(error.status, "ObjectRejected", f"the API server rejects the job's {kind}: {error.message}")


def _name_autoscaler(error: ApiError) -> ApiError:
    if not is_refusal(error) and (error.status != 404 or error.message.startswith("namespaces ")):
        return error
    if error.status == 404:
        remedy = "the cluster serves neither autoscaling/v2 nor autoscaling/v2beta2"
    elif error.status == 403:
        remedy = f"{error.message}: install the operator's chart with rbac.autoscaling=true"
    else:
        remedy = error.message
    return ApiError(error.status, _NO_AUTOSCALER, f"elasticPolicy.metrics has no effect: {remedy}")


def is_blocking(refused: Sequence[ApiError]) -> bool:
    """Whether pods are rejected, or something that they need. A job does without an autoscaler."""
    return any(error.reason != _NO_AUTOSCALER for error in refused)


def find_problem(refused: Sequence[ApiError]) -> tuple[str, str] | None:
    """(reason, message) of a condition: an invalid template, or a rejection that may be temporary."""
    for error in refused:
        if error.status in (400, 413, 422) and error.reason not in _TOLD_BY_REASON:
            return "InvalidTemplate", f"spec.template: the API server rejects the pod: {error.message}"
    if refused:
        first = min(refused, key=lambda error: error.reason == _NO_AUTOSCALER)
        return first.reason if first.reason in _TOLD_BY_REASON else "CreateForbidden", first.message
    return None
