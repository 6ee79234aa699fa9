"""Text that somebody else wrote, made safe for a log or a terminal. Pure.

A terminal obeys control characters: they move the cursor, set the clipboard, forge lines. Whatever comes from a job, a
pod or an agent passes one of these functions before a person sees it.
"""

from __future__ import annotations

import re
from typing import Final

# C0 and C1 controls, line and paragraph separators, marks that turn the direction of text, lone surrogates.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BUT_LINES: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; one that was longer ends in an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean(text: str, limit: int = 256) -> str:
    """One line of a log: no control characters, no forged lines, at most `limit` characters."""
    return _CONTROL.sub(" ", cut(text, limit))


def clean_block(text: str, limit: int = 16 * 1024, lines: int = 512) -> str:
    """As `clean`, for text of many lines: each is marked, so that none can pass for a line of ours."""
    return "\n".join("  | " + clean(line, 1024) for line in text[:limit].splitlines()[:lines])


def printable(text: str) -> str:
    """Text for a terminal: its lines and tabs stay, every other control character becomes `�`."""
    return _CONTROL_BUT_LINES.sub("�", text)
