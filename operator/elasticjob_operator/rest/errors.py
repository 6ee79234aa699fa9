"""Errors of requests to the API server. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.text import printable

MOST_WAIT_SECONDS: Final = 3600
BUSY: Final = (429, 503)  # of a server, or of a webhook that it asks, that has too much to do
MOST_MESSAGE: Final = 4096  # characters: the API server repeats what tenants wrote, however long it is
MOST_CAUSES: Final = 512  # fields of an object that were refused ...
MOST_CAUSE: Final = 512  # ... with so many characters about each
_MOST_REASON: Final = 256
_MOST_OBJECTS: Final = 2048  # in an error: with more, the list of its causes is not read
_DETAILS: Final = b',"details":'  # within a text, its marks would be escaped


class ApiError(Exception):
    """The API server rejected a request (`status` ≥ 400), or did not respond (`status` 0).

    `reason` is that of the metav1.Status, or empty; `message` is cut; `retry_after` is in seconds. `causes` are the
    fields that were refused, each as `field: why`; the message where the API server lists none. What it repeats of a
    tenant's text commands no terminal. `is_extra`: it is about an object that a job can do without.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: Sequence[str] = (),
    ) -> None:
        message, reason = printable(_cut(message)), printable(reason)
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = tuple(causes) or (message,)
        self.is_extra = False


def without_frames(error: ApiError) -> ApiError:
    """The error, to be kept or to be raised again, without the frames that it came through.

    They hold all that was computed there: the plan of a pass, its pods, the body of an answer. An error that is raised
    again gets those of each time.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


class UnreadableError(ApiError):
    """The response is too large, or not valid JSON."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(0, "Unreadable", f"{what}: {why}")
        self.why = why


def no_reply(what: str, error: Exception) -> ApiError:
    """The error for a request without a response."""
    return ApiError(0, "NoReply", f"{what}: {type(error).__name__}: {error}")


def decode_error(status: int, data: bytes | bytearray, retry_after: str | None = None) -> ApiError:
    """The error in a response. If the body is not a metav1.Status, for example a proxy's, it becomes the message."""
    text = data[:512].decode(errors="replace").strip()
    try:
        said = json.loads(_without_details(data) if data.count(b"{") > _MOST_OBJECTS else data)
        reason, message = _read(said, text)
        causes = list(_list_causes(said))
    except (ValueError, AttributeError, TypeError):
        reason, message, causes = "", text, []
    return ApiError(status, reason, message, read_wait(retry_after), causes)


def _without_details(data: bytes | bytearray) -> bytes | bytearray:
    """A metav1.Status without its list of causes, which the message before it has too; of anything else no JSON."""
    return data[: max(0, data.find(_DETAILS))] + b"}"


def _read(said: Mapping[str, Any], otherwise: str = "") -> tuple[str, str]:
    """Reason and message of a metav1.Status."""
    return str(said.get("reason") or "")[:_MOST_REASON], str(said.get("message") or otherwise)


def _list_causes(said: Mapping[str, Any]) -> Iterator[str]:
    causes = (said.get("details") or {}).get("causes") or ()
    for cause in causes[:MOST_CAUSES]:
        field, why = str(cause.get("field") or ""), str(cause.get("message") or "")
        yield printable(f"{_cut(field, MOST_CAUSE)}: {_cut(why, MOST_CAUSE)}")


def _cut(message: str, most: int = MOST_MESSAGE) -> str:
    """Its beginning and its end: the one says what was refused, the other why."""
    if len(message) <= most:
        return message
    half = most // 2
    return f"{message[: half - 1]} … {message[2 - half :]}"


def read_wait(retry_after: str | None) -> float | None:
    """The seconds in a `Retry-After` header; None without one, or if it is a date, which no API server sends."""
    return numerals.read_count(retry_after, MOST_WAIT_SECONDS)


def decode_watch_error(item: Mapping[str, Any]) -> ApiError:
    """The error in an event of type ERROR, with which the API server ends a watch."""
    return ApiError(numerals.read_count(item.get("code"), 999) or 500, *_read(item))
