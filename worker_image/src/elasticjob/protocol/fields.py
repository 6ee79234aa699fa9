"""Reads and writes the fields of JSON messages.

A message may carry what a script said: the text of an exception, the name of a metric, a number. `clean` and `fit` make
of any text and number one that every reader of JSON understands. So nothing that a script says can be the end of the
message that carries it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

MAX_COUNT: Final = 2**53  # the integers up to here are exact in every reader of JSON

_CUT: Final = " … "
_LINE: Final = 1024  # bytes
_LONGEST: Final = 6  # bytes of one character in JSON
_UNREADABLE: Final = re.compile("[\x00\ud800-\udfff]")  # Python has file names that are not UTF-8 as lone surrogates


class WireError(ValueError):
    """The peer sent a message that this version cannot parse."""


def drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def read_text(value: dict[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise WireError(f"{key} is no text")
    return found


def read_count(value: dict[str, Any], key: str, default: int | None = None) -> int:
    found = value.get(key, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise WireError(f"{key} is no count")
    return found


def read_number(value: dict[str, Any], key: str, default: float | None = None) -> float:
    found = value.get(key, default)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < float("inf"):
        raise WireError(f"{key} is no number")
    return float(found)


def clean(value: Any) -> Any:
    """The same value with readable texts; members of it that are numbers which JSON cannot have are left out."""
    if isinstance(value, str):
        if value.isascii() and "\x00" not in value:
            return value
        return _UNREADABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(name): clean(inner) for name, inner in value.items() if not _is_beyond(inner)}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value if not _is_beyond(inner)]
    return value


def _is_beyond(value: Any) -> bool:
    return (isinstance(value, int) and abs(value) > MAX_COUNT) or (
        isinstance(value, float) and not math.isfinite(value)
    )


def fit(text: str, limit: int) -> str:
    """A readable text of at most `limit` bytes of JSON. What is cut out is nearer to its beginning than to its end."""
    text = clean(text)
    if _LONGEST * len(text) + 2 <= limit:
        return text
    shown, keep = text, min(len(text), limit)
    while _measure(shown) > limit:
        shown = text[: keep // 4] + _CUT + text[len(text) - (keep - keep // 4) :]
        keep = keep * 15 // 16
    return shown


def fit_lines(text: str, limit: int) -> str:
    """The same for a traceback: long lines are cut first, so that the last one keeps its beginning."""
    return fit("\n".join(fit(line, _LINE) for line in text.split("\n")), limit)


def _measure(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())
