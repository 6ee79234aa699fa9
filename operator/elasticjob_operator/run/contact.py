"""Whether this replica still sees the cluster: an operator that is cut off lives, and its cache grows old. Pure.

The API server is heard by each of its answers and each piece of a watch. Whoever has heard nothing for a while asks, so
that silence means that nobody answers. A watch that is refused (an expired token, for example) is heard and sees
nothing; so it counts by itself. A silent watch alone proves nothing: it is made anew after a minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PROBE_SECONDS: Final = 10.0
BLIND_SECONDS: Final = 40.0  # a restart of an API server takes less


@dataclass(frozen=True, slots=True)
class Failing:
    """A watch that fails: of what, since when, and the last error."""

    path: str
    since: float
    error: str


def find_blindness(heard: float, failing: Iterable[Failing], now: float) -> str:
    """Why this replica does not see the cluster; "" if it does."""
    if now - heard > BLIND_SECONDS:
        return f"the API server has not answered for more than {BLIND_SECONDS:.0f} s"
    longest = min(failing, key=lambda one: one.since, default=None)
    if longest is not None and now - longest.since > BLIND_SECONDS:
        return f"the watch of {longest.path} has failed for more than {BLIND_SECONDS:.0f} s: {longest.error}"
    return ""
