"""Which entries of a checkpoint directory are finished. Pure; `folder` looks.

An entry is a file or folder directly in the directory. It is finished when nothing in it has changed for `QUIET`
seconds, and no process has a file of it open for writing. Entries that change at the same time are one save: none of
them is finished before all are. Who looks also excludes files that are cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from elasticjob.peers.records import entry_of

QUIET: Final = 1.0  # seconds
_LONGEST: Final = 30.0  # seconds that a save may take; what changes for longer is a log, which holds nothing else up
_TEMPORARY: Final = ("tmp", "temp")  # beginnings
_PARTIAL: Final = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock", ".swp", "~")  # ends


@dataclass(frozen=True)
class Stat:
    """What tells that a file was not changed."""

    size: int
    mtime_ns: int
    inode: int


def is_ignored(entry: str) -> bool:
    """Whether an entry is temporary by its name: programs write there first, and rename it when it is complete."""
    name = entry.lower()
    return name.startswith((".", *(f"{one}{mark}" for one in _TEMPORARY for mark in "-_."))) or name.endswith(_PARTIAL)


@dataclass(frozen=True)
class Watch:
    """What was seen of a directory."""

    files: Mapping[str, Stat] = field(default_factory=dict)  # at the last look
    since: Mapping[str, float] = field(default_factory=dict)  # by entry: time of its last change; also of removed ones
    began: Mapping[str, float] = field(default_factory=dict)  # ... and of the first one since it was finished last
    earliest: Mapping[str, float] = field(default_factory=dict)  # when that was at the earliest: at the look before
    looked: float | None = None  # when the last look was
    quiet: float = QUIET

    def look(self, now: float, files: Mapping[str, Stat], unready: Collection[str] = ()) -> Watch:
        """The state after this look. `now` is in seconds of a monotonic clock.

        `unready`: what was not finished at the last look, for example because it rested while it was open.
        """
        paths = files.keys() | self.files.keys()
        changed = {entry_of(path) for path in paths if files.get(path) != self.files.get(path)}
        moving = {entry for entry, time in self.since.items() if now - time < self.quiet or entry in unready}
        began = {**self.began, **dict.fromkeys(changed - moving, now)}
        before = now if self.looked is None else self.looked
        earliest = {**self.earliest, **dict.fromkeys(changed - moving, before)}
        since = {**self.since, **dict.fromkeys(changed, now)}
        there = set(map(entry_of, files))
        since = {entry: time for entry, time in since.items() if entry in there or now - time <= _LONGEST}
        began, earliest = ({entry: times[entry] for entry in since} for times in (began, earliest))
        return Watch(files, since, began, earliest, now, self.quiet)

    def find_unready(self, now: float, busy: Collection[str] = (), *, ended: bool = False) -> frozenset[str]:
        """The entries that are not finished, also those that were removed a moment ago.

        `busy`: those that are open for writing. `ended`: nobody writes any more, so all others have come to rest.
        """
        unready = {entry for entry, time in self.since.items() if now - time < self.quiet and not ended}.union(busy)
        for save in self._find_saves():
            if not unready.isdisjoint(save):
                unready |= save
        return frozenset(entry for entry in unready if not is_ignored(entry))

    def _find_saves(self) -> Iterator[set[str]]:
        """The entries that may have changed together: with less than `quiet` seconds between one and the next.

        A look may come long after the last one, because what is copied in between takes its time.
        """
        begin = end = last = 0.0
        save: set[str] = set()
        for entry in sorted(self.since, key=self.earliest.__getitem__):
            if self.since[entry] - self.began[entry] > _LONGEST:
                continue
            if save and self.earliest[entry] - end >= self.quiet:
                yield save if last - begin <= _LONGEST else set()
                save = set()
            begin = min(begin, self.began[entry]) if save else self.began[entry]
            end = max(end, self.since[entry]) if save else self.since[entry]
            last = self.earliest[entry]  # the latest of the save: they are sorted
            save.add(entry)
        yield save if last - begin <= _LONGEST else set()

    @property
    def entries(self) -> frozenset[str]:
        return frozenset(map(entry_of, self.finishable))

    @property
    def finishable(self) -> list[str]:
        """The paths of all files that are not temporary."""
        return [path for path in self.files if not is_ignored(entry_of(path))]
