"""Extracts the error from a log: the traceback, shortened in the middle, or else the last line. Pure.

The exception and the innermost frames matter most, so they are never omitted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elasticjob_operator.text import cut, without_unseen

LINES = 24  # of a traceback; lines in the middle are omitted
LINE_LENGTH = 512
HEAD = 3  # lines kept at the top: the heading and the outermost frame
MESSAGE_LINES = 5  # of an exception's message, which cannot be told apart from the log lines after it
TAIL_CHARACTERS = 4096
KUBELET_BYTES = 2048  # of a log that the kubelet stores in a termination message

_HEADING = "Traceback (most recent call last)"
_FRAME = re.compile(r'^[^\S\n]+File ".*", line \d+', re.MULTILINE)
_WORDS = re.compile(r"^.*[^\W_].*$", re.MULTILINE)  # a line with a letter or a digit
_GROUP = "  + Exception Group Traceback"
_IN_GROUP = re.compile(r"\s+\| ([A-Za-z_][\w.]*(?:: .*)?)$")  # an exception, not what is indented below a heading
MEMBERS = 3  # of a group of exceptions that are named
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LOG_PREFIX = re.compile(r"\[|[EWIF]\d{4} |\d{4}-\d\d-\d\d|elasticjob: ")
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_OVERWRITTEN = re.compile(r"^.*\r(?=[^\r\n])|\r+$", re.MULTILINE)  # what a progress bar has drawn before


# Signals that the loss of a peer cannot cause. SIGABRT is not among them: NCCL's watchdog aborts a process with it.
OWN_SIGNALS = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_OF_A_PEER = (
    "Connection closed by peer",
    "Connection reset",
    "Connection refused",
    "Broken pipe",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ncclRemoteError",
    "gloo",
    "elasticjob.errors.WorldLostError",
    "elasticjob.errors.CollectiveFailedError",
)
# What the runtime raises for a script that is wrong, and not for what a machine or a network does.
REFUSAL = re.compile(
    r"elasticjob\.errors\.(ConfigurationError|StepsDifferError|CollectiveMismatchError|BufferTouchedError)\b"
)


@dataclass(frozen=True, slots=True)
class Split:
    """A log split into its traceback and the rest."""

    rest: str
    traceback: str


def is_of_a_peer(signal: str, text: str) -> bool:
    """Whether a worker ended as if it had lost a peer: with a network error, or by NCCL's watchdog."""
    if signal in OWN_SIGNALS:
        return False
    return signal == "SIGABRT" or (any(word in text for word in _OF_A_PEER) and not REFUSAL.search(text))


def clean(text: str) -> str:
    """The text as a terminal would finally show it: without overwritten progress bars and escape sequences."""
    text = _ESCAPES.sub("", text) if "\x1b" in text else text
    text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n"))
    return without_unseen(text)  # of all lines at once: a tenant's text may be nothing but line ends


def tail(text: str) -> str:
    """The last lines of a log, bounded in number. A line that was cut off is dropped."""
    is_whole = len(text.encode(errors="replace")) < KUBELET_BYTES
    text = clean(text).strip("\n")[-TAIL_CHARACTERS:]
    return text if is_whole or "\n" not in text else text.partition("\n")[2]


def split(log: str) -> Split:
    """Split off the first traceback in a log, together with the exceptions chained to it.

    A truncated log may begin inside the traceback.
    """
    text = clean(log)
    at = text.find(_HEADING)
    if at < 0:
        frame = _FRAME.search(text)
        at = frame.start() if frame else -1
    if at < 0:
        return Split(text.removesuffix("\n"), "")
    lines, start = text.splitlines(), text.count("\n", 0, at)
    end = _end_of_chain(lines, start)
    return Split("\n".join([*lines[:start], *lines[end:]]).strip("\n"), "\n".join(lines[start:end]))


def _end_of_chain(lines: list[str], start: int) -> int:
    """The index after the last traceback that is chained to the one that starts at `start`."""
    while True:
        following = end = _end_of_one(lines, start)
        while following < len(lines) and (not lines[following].strip() or lines[following].startswith(_CHAINED)):
            following += 1
        is_chained = following < len(lines) and lines[following - 2].startswith(_CHAINED)
        if not is_chained or _HEADING not in lines[following]:
            return end
        start = following


def _end_of_one(lines: list[str], start: int) -> int:
    at = start + 1
    while at < len(lines) and (lines[at][:1].isspace() or not lines[at]):
        at += 1
    if lines[start].startswith(_GROUP):
        return at  # its message is inside
    last = min(len(lines), at + MESSAGE_LINES)
    at += 1
    while at < last and lines[at].strip() and not _LOG_PREFIX.match(lines[at]):
        at += 1
    return min(at, len(lines))


def exception_of(traceback: str) -> str:
    """Type and message of the last exception, as one line."""
    lines = [line for line in traceback.splitlines() if line.strip() and not line.startswith("Traceback (")]
    inside = [i for i, line in enumerate(lines) if line[:1].isspace()]
    after = lines[inside[-1] + 1 :] if inside else lines
    in_group = [found[1] for line in lines if (found := _IN_GROUP.match(line))]
    if in_group and not after:
        group, *members = in_group
        return f"{group}: {'; '.join(members[:MEMBERS])}".removesuffix(": ")[:LINE_LENGTH]
    return (after or lines or [""])[0].strip()[:LINE_LENGTH]


def shorten(traceback: str) -> str:
    """The traceback with at most `LINES` lines; lines in the middle are omitted."""
    lines = traceback.splitlines()
    if len(lines) > LINES:
        left_out = len(lines) - LINES + 1
        lines = [*lines[:HEAD], f"  … {left_out} lines omitted …", *lines[HEAD + left_out :]]
    return "\n".join(cut(line, LINE_LENGTH) for line in lines)


def last_word(log: str) -> str:
    """The last line of a log that contains words; a rule of dashes does not count."""
    lines = _WORDS.findall(clean(log))
    return lines[-1].strip()[:LINE_LENGTH] if lines else ""
