"""Which entries of a checkpoint directory are finished. Pure; `folder` looks.

An entry is a file or folder directly in the directory. It is finished when nothing in it has changed for `QUIET`
seconds. Who looks also excludes what a process has open for writing, and files that are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elasticjob.peers.records import entry_of

QUIET: Final = 1.0  # seconds
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

    def look(self, now: float, files: Mapping[str, Stat]) -> Watch:
        """The state after this look. `now` is in seconds of a monotonic clock."""
        files = {path: stat for path, stat in files.items() if not is_ignored(entry_of(path))}
        paths = files.keys() | self.files.keys()
        changed = {entry_of(path) for path in paths if files.get(path) != self.files.get(path)}
        return Watch(files, {**self.since, **dict.fromkeys(changed, now)})

    def find_finished(self, now: float, *, quiet: float = QUIET) -> frozenset[str]:
        """The entries that have not changed for `quiet` seconds, among them removed ones."""
        return frozenset(entry for entry, time in self.since.items() if now - time >= quiet)

    @property
    def entries(self) -> frozenset[str]:
        return frozenset(map(entry_of, self.files))
