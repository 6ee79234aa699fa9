"""The last failure of each rank, in a bounded number of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.model.revise import revise

MOST_FAILURES: Final = 32
MOST_BYTES: Final = 16 * 1024
_TRACEBACK_BYTES: Final = 1024
_LOG_BYTES: Final = 512
_MESSAGE_BYTES: Final = 256


def merge(before: Sequence[api.FailureStatus], found: Sequence[api.FailureStatus]) -> list[api.FailureStatus]:
    """The failures with new ones, of which the cause comes first. An earlier one of the same rank is replaced."""
    fresh = {_key(one) for one in found}
    return _bounded([*found, *(one for one in before if _key(one) not in fresh)])


def _key(failure: api.FailureStatus) -> tuple[int | None, str]:
    return (failure.rank, "" if failure.rank is not None else failure.pod or "")


def _bounded(failures: Iterable[api.FailureStatus]) -> list[api.FailureStatus]:
    """The first failures; the texts of the first ones of these, as many as fit."""
    whole = [_shorten(failure) for failure in list(failures)[:MOST_FAILURES]]
    bare = [revise(failure, message=None, traceback=None, log_tail=None) for failure in whole]
    left = MOST_BYTES - sum(map(_size, bare))
    kept: list[api.FailureStatus] = []
    for one, without in zip(whole, bare, strict=True):
        left -= _size(one) - _size(without)
        kept.append(one if left >= 0 else without)
    return kept


def _size(failure: api.FailureStatus) -> int:
    return len(failure.model_dump_json(by_alias=True, exclude_none=True).encode())


def _shorten(failure: api.FailureStatus) -> api.FailureStatus:
    """The ends of its texts: the exception and the innermost calls come last in them."""
    return revise(
        failure,
        message=_head(failure.message, _MESSAGE_BYTES),
        traceback=_end(failure.traceback, _TRACEBACK_BYTES),
        log_tail=_end(failure.log_tail, _LOG_BYTES),
    )


def _head(text: str | None, most: int) -> str | None:
    raw = (text or "").encode()
    return text if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"


def _end(text: str | None, most: int) -> str | None:
    """The last whole lines of a text; of a single long line, its end."""
    raw = (text or "").encode()
    if len(raw) <= most:
        return text
    cut = raw[3 - most :].decode(errors="ignore")
    return "…" + (cut.partition("\n")[2] or cut)
