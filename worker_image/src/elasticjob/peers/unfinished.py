"""Files in entries that are not finished, from look to look: logs, and what keeps others from being copied. Pure.

`directory` looks, and says what is open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from elasticjob.peers.records import entry_of
from elasticjob.peers.watch import QUIET, Stat

LOG_SECONDS: Final = 10.0  # for which a worker keeps a log open to append to, and no checkpoint
HELD_SECONDS: Final = 300.0  # longer than the parts of one save are apart
_MOST_TOLD: Final = 200  # characters of a path


def is_longer(before: Stat, after: Stat) -> bool:
    """Whether this is the same file, to which something may have been appended."""
    return before.inode == after.inode and before.size <= after.size


@dataclass(frozen=True)
class Logs:
    """What workers write at the end of files: a log is part of no checkpoint, also beside some."""

    appended: Mapping[tuple[str, int], float] = field(default_factory=dict)  # by path and inode: since when it is open
    found: Mapping[str, Stat] = field(default_factory=dict)  # those that are logs

    def look(self, now: float, files: Mapping[str, Stat], appending: Collection[str] | None) -> Logs:
        """`appending`: the files that workers have open to append to; None if nobody has looked for them."""
        appended, logs = self.appended, dict(self.found)
        if appending is not None:
            there = [(path, files[path].inode) for path in appending if path in files]
            appended = {one: self.appended.get(one, now) for one in there}
            logs |= {path: files[path] for (path, _), since in appended.items() if now - since >= LOG_SECONDS}
        kept = {path: files[path] for path, stat in logs.items() if path in files and is_longer(stat, files[path])}
        return Logs(appended, kept)


@dataclass(frozen=True)
class Held:
    """A file in an entry that is being written: since when, and since when it is as it is."""

    began: float
    since: float
    stat: Stat
    rested: float = -math.inf  # when it had last been as it was for as long as a finished file
    # When it was overwritten, and has not only grown, as a log does: first, with no long time between this and the
    # next times, and last.
    first_over: float = math.inf
    last_over: float = -math.inf

    def look(self, now: float, stat: Stat) -> Held:
        if stat == self.stat:
            return replace(self, rested=now) if now - self.since >= QUIET else self
        moved = replace(self, since=now, stat=stat)
        if is_longer(self.stat, stat) and stat.size > self.stat.size:
            return moved
        return replace(moved, first_over=self.first_over if now - self.last_over < HELD_SECONDS else now, last_over=now)

    def never_rests(self, now: float) -> bool:
        return now - max(self.began, self.rested) >= HELD_SECONDS

    def is_overwritten(self, now: float) -> bool:
        """Again and again, and not once, as a log that is cut."""
        return now - self.last_over < HELD_SECONDS and self.last_over - self.first_over >= HELD_SECONDS / 2


def look(before: Mapping[str, Held], now: float, files: Mapping[str, Stat]) -> dict[str, Held]:
    """These files, which are in entries that are being written, after this look."""
    return {path: before.get(path, Held(now, now, stat)).look(now, stat) for path, stat in files.items()}


def describe(held: Mapping[str, Held], now: float, opened: Collection[str], known: Collection[str]) -> str:
    """One of these files that rests, and what is always being written in its entry; or one that never rests; or "".

    `opened`: what is open for writing; `known`: what was read already. Says the same at each look.
    """
    resting = {path for path, one in held.items() if now - one.since >= HELD_SECONDS}.difference(opened)
    moving: dict[str, list[str]] = {}  # by entry
    for path in sorted(held.keys() - resting):
        moving.setdefault(entry_of(path), []).append(path)
    for path in sorted(resting, key=lambda one: (held[one].since, one)):
        if others := moving.get(entry_of(path)):
            ages = {one: math.inf if one in known else now - held[one].began for one in others}
            old = next((one for one in others if ages[one] >= HELD_SECONDS), "")
            what = f"{old[:_MOST_TOLD]!r} is" if old else "new files are"
            return f"{path[:_MOST_TOLD]!r}, beside which {what} always being written"
    worn = sorted(one for one in held.keys() - resting if now - held[one].began >= HELD_SECONDS)
    for path in (one for one in worn if held[one].is_overwritten(now) and one not in known):
        if held[path].never_rests(now):
            return f"{path[:_MOST_TOLD]!r}, which never rests for a second between two writes"
        beside = (one for one in worn if one != path and entry_of(one) == entry_of(path))
        if (other := next((one for one in beside if held[one].never_rests(now)), "")) != "":
            return f"{path[:_MOST_TOLD]!r}, beside which {other[:_MOST_TOLD]!r} is always being written"
    return ""
