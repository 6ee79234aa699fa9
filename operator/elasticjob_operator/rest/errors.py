"""What the API server answers instead of what was asked for. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """The API server said no (`status` ≥ 400), or said nothing (`status` 0).

    `reason` is that of the metav1.Status, empty where the answer was none; `retry_after` is in seconds.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class UnreadableError(ApiError):
    """The reply is too large, or no JSON that can be read."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(0, "Unreadable", f"{what}: {why}")


def no_reply(what: str, error: Exception) -> ApiError:
    """The error for a request that the transport could not bring to an answer."""
    return ApiError(0, "NoReply", f"{what}: {type(error).__name__}: {error}")


def decode_error(status: int, data: bytes, retry_after: str | None = None) -> ApiError:
    """The error in an answer. A body that is no metav1.Status, such as a proxy's, is its message."""
    text = data[:512].decode(errors="replace").strip()
    try:
        said = json.loads(data)
        reason, message = str(said.get("reason") or ""), str(said.get("message") or text)
    except (ValueError, AttributeError):
        reason, message = "", text
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ApiError(status, reason, message, wait)


def decode_watch_error(item: Mapping[str, Any]) -> ApiError:
    """The error in an event of type ERROR, with which the API server ends a watch."""
    return ApiError(int(item.get("code") or 500), str(item.get("reason") or ""), str(item.get("message") or ""))
