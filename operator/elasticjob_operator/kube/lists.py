"""Which lists have come to their end: what one of them lacks is gone, whatever an earlier request brings. Pure.

Without a watch, a list is all that tells a deletion, and it cannot name what was made and deleted meanwhile. So whoever
enters an answer says how many lists had ended when the request was sent.
"""

from __future__ import annotations

from elasticjob_operator import numerals


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is certainly older than another; False if they are not numbers."""
    old, new = numerals.read_count(version, 2**64), numerals.read_count(than, 2**64)
    return old is not None and new is not None and old < new


class Lists:
    """The last list of each kind, of each namespace or of all ("")."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[int, str]] = {}  # its number, and its version
        self._ended = 0

    def count(self) -> int:
        """How many have ended: to be asked for before a request."""
        return self._ended

    def end(self, kind: str, namespace: str, version: str) -> None:
        """Each object of this list was entered; what it lacks is dropped next, between which others have the loop."""
        self._ended += 1
        self._last[kind, namespace] = self._ended, version

    def has_missed(self, kind: str, namespace: str, version: str, since: int | None) -> bool:
        """Whether an object that is unknown and has this version is gone, since a later list lacks it.

        `since`: how many lists had ended when it was asked for; None if a list or a watch has brought it.
        """
        if since is None:
            return False
        lists = (self._last.get((kind, of), (0, "")) for of in {"", namespace})
        return any(number > since and (version == at or is_older(version, at)) for number, at in lists)
