"""What rank 0 decides from the reports of all pods: when there is a new record, and which one enough pods have.

No clock, no I/O. A report may be older than those that it is put together with. So a record is proposed first, and made
when all pods have looked once more and the reports still say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from elasticjob.peers import records
from elasticjob.peers.records import Files, Record, Report

SPREAD_SECONDS: Final = 10.0  # for the other pods to fetch a record


@dataclass(frozen=True)
class Ending:
    """How far a pod has come with leaving its world."""

    is_leaving: bool = False  # it has been told to end, so it holds no copies any more
    is_done: bool = True  # its workers write no more; an older agent says nothing of it


STAYS: Final = Ending()


@dataclass
class Lead:
    """The state of one world. Not thread-safe."""

    generation: int
    size: int
    replicas: int  # other pods that should have each record
    spread_seconds: float = SPREAD_SECONDS
    round: int = 0  # how often a record has been proposed
    has_news: bool = False  # a pod says something else than before: `make_record` may have another answer
    _proposed: Files = field(default_factory=dict)
    _reports: dict[int, Report] = field(default_factory=dict)  # of each rank ...
    _rounds: dict[int, int] = field(default_factory=dict)  # ... the round that it knew of when it looked ...
    _known: dict[int, str] = field(default_factory=dict)  # ... and the name of the record that it has; not rank 0
    _numbers: dict[str, int] = field(default_factory=dict)  # of the records, by name
    _endings: dict[int, Ending] = field(default_factory=dict)  # of each rank, with its last report
    _left: set[int] = field(default_factory=set)  # ranks that have gone: what they have said last is all they had
    _told: int = 0  # the number of the record that the hub knows of ...
    _told_at: float = 0.0  # ... and when it was the newest, or became known

    def take(self, rank: int, report: Report, round_: int, known: str = "", ending: Ending = STAYS) -> None:
        """Note what a rank says. `round_`: the round that it knew of when it looked."""
        self._endings[rank] = ending
        before = self._reports.get(rank), self._rounds.get(rank), self._known.get(rank, "")
        self.has_news |= before != (report, round_, known)
        self._reports[rank], self._rounds[rank] = report, round_
        if rank:
            self._known[rank] = known

    def make_record(self, before: Record | None) -> Record | None:
        """The next record, once all pods agree on it; None if there is nothing new, or they have to look again."""
        self.has_news = False
        if len(self._reports) < self.size:
            return None
        files, shared = records.combine(before, [self._reports[rank] for rank in range(self.size)])
        if not files or (before is not None and files == before.files):
            self._proposed = {}
            return None
        if files != self._proposed:
            self._proposed, self.round = files, self.round + 1
        if min(round_ for rank, round_ in self._rounds.items() if rank not in self._left) < self.round:
            return None
        return Record(self.generation, 1 if before is None else before.number + 1, files, shared)

    def is_proposing(self) -> bool:
        """Whether a record waits for all pods to look once more."""
        return bool(self._proposed)

    def find_kept(self, now: float, record: Record) -> tuple[int, int] | None:
        """The number of the newest record that enough pods have, and how many; of `record`, if that takes too long.

        `now` is in seconds of a monotonic clock. None before all pods have reported, or if there is nothing to tell.
        """
        if len(self._reports) < self.size:
            return None
        self._numbers[record.name] = record.number
        held = [self._numbers.get(name, 0) for rank, name in self._known.items() if rank not in self._left]
        number = records.find_held(held, self._wanted, record.number)
        if number > self._told or number == record.number:
            self._told, self._told_at = number, now
        elif now - self._told_at > self.spread_seconds:
            number = record.number
        copies = min(report.copies for report in self._reports.values())
        return (number, min(copies, sum(one >= number for one in held))) if number else None

    def note_leaving(self, rank: int, *, left: bool = False) -> None:
        """This rank has been told to end, and is about to leave. `left`: and all that it has written is recorded."""
        self._endings[rank] = replace(self._endings.get(rank, Ending(is_done=False)), is_leaving=True)
        if left and rank in self._reports:
            self._left.add(rank)
            self.has_news = True

    def has_left(self, rank: int) -> bool:
        """Whether this rank has gone, with all that it had written recorded."""
        return rank in self._left

    @property
    def do_all_leave(self) -> bool:
        """Whether all pods have been told to end: none of them is left to hold a copy."""
        return len(self._endings) == self.size and all(one.is_leaving for one in self._endings.values())

    def is_settled(self, record: Record | None) -> bool:
        """Whether no pod writes any more, and what all of them have written is in this record."""
        is_done = [one.is_done or rank in self._left for rank, one in self._endings.items()]
        if len(is_done) < self.size or not all(is_done):
            return False
        files, _ = records.combine(record, [self._reports[rank] for rank in range(self.size)])
        return not files or (record is not None and files == record.files)

    def find_silent(self) -> list[int]:
        """The ranks that have not reported in this world: there is no record without them."""
        return [rank for rank in range(self.size) if rank not in self._reports]

    def find_writers(self, record: Record) -> dict[str, list[int]]:
        """The ranks that have written files with these chunks of a record, and are still there, in order."""
        found: dict[str, list[int]] = {}
        for rank in sorted(self._reports.keys() - self._left):
            for path, file in self._reports[rank].files.items():
                if record.files.get(path) == file:
                    for digest in set(file.chunks):
                        found.setdefault(digest, []).append(rank)
        return {digest: sorted(set(ranks)) for digest, ranks in found.items()}

    def is_known(self, record: Record) -> bool:
        """Whether as many other pods as there should be have this record."""
        known = [name for rank, name in self._known.items() if rank not in self._left]
        return sum(name == record.name for name in known) >= self._wanted

    @property
    def _wanted(self) -> int:
        return min(self.replicas, self.size - 1 - len(self._left))
