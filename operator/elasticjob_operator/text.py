"""Text that somebody else wrote, made safe for a log or a terminal. Pure.

A terminal obeys control characters: they move the cursor, set the clipboard, forge lines. Whatever comes from a job, a
pod or an agent passes one of these functions before a person sees it.
"""

from __future__ import annotations

import re
from typing import Final

# What nobody sees: C1 controls, marks that turn the direction of text, everything else that Unicode calls a format
# character or says not to show (fillers, variation selectors, tags), line and paragraph separators, lone surrogates.
# It can reorder or hide what is read, or make two names look the same. Three kinds stay, without which people cannot
# write: the joiners U+200C and U+200D (Persian, Hindi, emoji) and the two selectors of emoji, U+FE0E and U+FE0F, which
# move, hide and swallow nothing, and signs such as U+0600, which are printed. What letters written from right to left
# do to their line is theirs.
_UNSEEN: Final = (
    "\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_CONTROL: Final = re.compile(f"[\x00-\x1f{_UNSEEN}]")
_CONTROL_BUT_LINES: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSEEN}]")


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; one that was longer ends in an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_lines(text: str, most: int) -> str:
    """At most so many lines: a text of thousands may be nothing but their ends. What follows becomes an ellipsis."""
    lines = text.split("\n", most)
    return text if len(lines) <= most else "\n".join([*lines[:most], "…"])


def clean(text: str, limit: int = 256) -> str:
    """One line of a log: no control characters, no forged lines, at most `limit` characters."""
    return _CONTROL.sub(" ", cut(text, limit))


def clean_block(text: str, limit: int = 16 * 1024, lines: int = 512) -> str:
    """As `clean`, for text of many lines: each is marked, so that none can pass for a line of ours."""
    return "\n".join("  | " + clean(line, 1024) for line in text[:limit].splitlines()[:lines])


def printable(text: str) -> str:
    """Text for a terminal: its lines and tabs stay, everything else that nobody sees becomes `�`."""
    if text.isascii() and text.isprintable():  # as most texts are; each condition of each pass is looked at
        return text
    return _CONTROL_BUT_LINES.sub("�", text)


def without_unseen(text: str) -> str:
    """Text of which lines and tabs stay, and nothing that nobody sees."""
    return _CONTROL_BUT_LINES.sub("", text)
