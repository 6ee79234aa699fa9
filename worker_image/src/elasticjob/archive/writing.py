"""Sends what the pods of a world hold to the archive of the job, and keeps it tidy.

Rank 0's agent leads: it says who sends what, looks whether all of it is there, and writes the manifest. Any request may
be the last one of its process, and an agent of an older world may still be at work.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from elasticjob.archive import garbage, layout, reading
from elasticjob.archive.ahead import AT_ONCE, Answer
from elasticjob.archive.garbage import Doomed
from elasticjob.archive.layout import Object, Save, TooLargeError
from elasticjob.archive.storage import Storage, StoreError
from elasticjob.peers.records import Record

logger = logging.getLogger("elasticjob")

_LONGEST_REST: Final = 0.2  # seconds until somebody may be in a hurry


class OverError(Exception):
    """An agent of a newer world leads now, or this one is at its end."""


class GoneError(Exception):
    """A chunk of a record is not in any pod any more: it cannot be archived."""


class UnreadableError(StoreError):
    """The manifest of a save would be larger than what is read of one."""

    reason = "TooLarge"


class LostError(StoreError):
    """The store does not show what it has taken, or somebody is about to delete it: it is sent again."""


class Sender:
    """Sends objects of chunks that this pod holds. For one thread."""

    def __init__(
        self,
        storage: Storage,
        read: Callable[[str], bytes | None],
        bytes_per_second: float,
        *,
        has_hurry: bool = False,
    ) -> None:
        self._storage, self._read, self._rate = storage, read, bytes_per_second
        self._sent: set[str] = set()  # names of objects
        self._free_at = 0.0
        self.has_hurry = has_hurry  # no rate is kept; may be set while `send` is under way
        self.bytes = 0  # sent so far

    def forget(self) -> None:
        """Send again what is asked for: the store has lost something."""
        self._sent.clear()

    def send(self, objects: Sequence[Object], is_over: Callable[[], bool]) -> None:
        """Raises GoneError, OverError or StoreError. Goes on where it stopped if it is called again.

        One object after the other; where there is a hurry, a few at once.
        """
        under_way: deque[tuple[Object, Answer[None]]] = deque()

        def check() -> None:
            if is_over():
                raise OverError

        def finish(most: int) -> None:
            while len(under_way) > most:
                one, answer = under_way.popleft()
                answer.take(check)
                self._note(one)

        try:
            for one in objects:
                if one.name in self._sent:
                    continue
                check()
                put = partial(self._storage.put, f"{layout.OBJECTS}/{one.name}", self._collect(one))
                if self.has_hurry:
                    finish(AT_ONCE - 1)
                    under_way.append((one, Answer(put)))
                else:
                    put()
                    self._note(one)
                    self._rest(one.size, is_over)
            finish(0)
        except Exception:
            for one, answer in under_way:  # what they have sent is not sent again
                with contextlib.suppress(Exception):
                    answer.take(check)
                    self._note(one)
            raise

    def _collect(self, one: Object) -> bytes:
        parts = []
        for digest, _ in one.chunks:
            data = self._read(digest)
            if data is None:
                raise GoneError(f"the chunk {digest[:12]} is not in this pod any more")
            parts.append(data)
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _note(self, one: Object) -> None:
        self._sent.add(one.name)
        self.bytes += one.size

    def _rest(self, size: int, is_over: Callable[[], bool]) -> None:
        """Keep the rate: gradients use the same network."""
        self._free_at = max(time.monotonic(), self._free_at) + size / self._rate
        while not (self.has_hurry or is_over()) and (left := self._free_at - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_REST))


@contextlib.contextmanager
def _refusing_too_large(save: Save) -> Iterator[None]:
    """Raises UnreadableError."""
    try:
        yield
    except TooLargeError as error:
        raise UnreadableError(
            f"the checkpoint has {len(save.record.files)} files and {len(save.objects)} objects; what names them is too"
            f" large to be read again: {error}. Let the script write fewer files, or keep fewer of them"
        ) from None


Send = Callable[
    [Mapping[int, Sequence[Object]]], None
]  # has these ranks send these objects, and returns when all is sent
FindHolders = Callable[[Mapping[str, int]], Mapping[str, Sequence[int]]]  # the ranks that have these chunks


class Leader:
    """The archive as the agent of rank 0 of one generation sees it. For one thread."""

    def __init__(self, storage: Storage, job: str, generation: int, keep: int, clock: Callable[[], str]) -> None:
        self._storage, self._job, self._generation, self._keep = storage, job, generation, keep
        self._clock = clock
        self._has_begun = self._has_saved = False
        self._saves: dict[str, Save] = {}  # manifests that were read or written, by name
        self._places: dict[str, Object] = {}  # by chunk: the object to build on
        self._there: dict[str, Object] = {}  # by content: one of an older world whose save was never complete
        self._tidied = 0  # how often
        self._told, self._told_names = Doomed(), list[str]()  # what others were about to delete
        self._deletes = Doomed()  # what was written down, to be deleted after the next save ...
        self._lists: list[str] = []  # ... with what says so
        self._doubtful: set[str] = set()  # manifests that do not count as made, until another one does
        self._parts: set[str] = set()  # of files that were being written at the last look

    def begin(self) -> None:
        """Say that this generation leads, and look at what there is. Raises StoreError or OverError."""
        if self._has_begun:
            return
        self._storage.put(f"{layout.LEADS}/{self._generation:010d}", b"")
        self._check_lead()
        self._told, self._told_names = reading.find_told(self._storage)  # after the claim: see `garbage`
        stock = reading.look(self._storage)
        self._saves = {name: save for name, save in stock.saves.items() if name not in self._told.saves}
        sizes = {name: size for name, size in stock.sizes.items() if name not in self._told.objects}
        for _, save in sorted(self._saves.items()):
            if all(sizes.get(one.name) == one.size for one in save.objects):
                self._places |= {digest: one for one in save.objects for digest, _ in one.chunks}
        self._there = {}
        for name, size in sizes.items():
            self._note_there(name, size)
        self._has_begun = True

    def _note_there(self, name: str, size: int) -> None:
        found = layout.parse_name(name)
        if found is not None:
            writer, content = found
            self._there[content] = Object(writer, ((content, size),))

    @property
    def saves(self) -> list[Save]:
        """The saves that are kept, newest first, as far as this agent knows."""
        known = [save for name, save in self._saves.items() if name not in self._deletes.saves]
        return sorted(known, key=lambda save: save.order, reverse=True)

    def has(self, name: str) -> bool:
        """Whether there is a save of the record of this name."""
        return any(save.record.name == name for save in self._saves.values())

    def save(self, record: Record, step: int | None, find_holders: FindHolders, send: Send) -> Save:
        """Archive a record. Raises GoneError, OverError, StoreError, UnreadableError, and what `send` raises."""
        self.begin()
        wanted = layout.find_sizes(record.files)
        missing = {digest: size for digest, size in wanted.items() if digest not in self._places}
        shares = layout.assign(missing, find_holders(missing))
        unheld = missing.keys() - {digest for share in shares.values() for digest in share}
        if unheld:
            raise GoneError(f"{len(unheld)} chunks of the checkpoint are in no pod that answers")
        writer = (self._generation, self._tidied)
        planned = {rank: layout.pack(share, writer) for rank, share in shares.items()}
        adopted = {one.name: self._adopt(one) for objects in planned.values() for one in objects}
        sent = {digest: one for one in adopted.values() for digest, _ in one.chunks}
        objects = {one.name: one for one in (sent.get(digest) or self._places[digest] for digest in wanted)}
        made = Save(self._job, record, step, self._clock(), tuple(objects[name] for name in sorted(objects)))
        with _refusing_too_large(made):
            made.dump_plain()  # before anything is sent
        send({rank: [one for one in objects if adopted[one.name] is one] for rank, objects in planned.items()})
        self._check_there(objects)
        self._check_lead()
        made = replace(made, time=self._clock())
        with _refusing_too_large(made):
            data = made.dump()
        name = layout.name_save(made.order, data)
        self._storage.put(f"{layout.SAVES}/{name}", data)
        try:
            self._hear(name, objects)
            self._check_there(objects)
        except LostError:
            self._doubtful.add(name)  # it is made again
            raise
        self._places |= sent
        self._saves[name] = made
        self._doubtful.discard(name)  # the same bytes again: it counts now
        self._has_saved = True
        self._withdraw()
        return made

    def _withdraw(self) -> None:
        """Delete manifests that did not count as made, now that one does: somebody may have counted on them, and have
        deleted what is older.
        """
        while self._doubtful:
            with contextlib.suppress(StoreError):
                self._storage.delete(f"{layout.SAVES}/{self._doubtful.pop()}")

    def _hear(self, name: str, objects: Mapping[str, Object]) -> None:
        """Once this manifest is there: raises LostError if somebody is about to delete it, or what it names.

        `elasticjob archive prune` writes that down first, and looks at the manifests afterwards. So either it has seen
        this one, and leaves what it names, or its note is here now, or what it has deleted is gone.
        One that has seen it may count on it and delete all others, so a note of other things is no reason to withdraw.
        """
        known = {*self._told_names, *self._lists}
        told, names = reading.find_told(self._storage, lambda note: layout.PRUNES in note and note not in known)
        if not names:
            return
        self._told, self._told_names = self._told | told, [*self._told_names, *names]
        self._tidied += 1  # what is sent again has a name of its own
        self._there = {}
        self._places = {digest: one for digest, one in self._places.items() if one.name not in told.objects}
        self._saves = {known: save for known, save in self._saves.items() if known not in told.saves}
        if name in told.saves or not told.objects.isdisjoint(objects):
            raise LostError(f"somebody prunes {self._storage.url}")

    def tidy(self) -> None:
        """After a save: delete what was written down after the one before, and write down what goes next.

        Raises StoreError or OverError. What it does not get done, the next call or the next generation does.
        """
        if not self._has_saved:
            return
        self._check_lead()
        self._delete()
        stock = reading.look(self._storage, self._saves)
        self._check_newest(stock)
        self._saves = dict(stock.saves)
        kept = {one.name for name in stock.find_kept(self._keep) for one in stock.saves[name].objects}
        self._places = {digest: one for digest, one in self._places.items() if one.name in kept}
        self._there = {}
        self._tidied += 1
        doomed = stock.find_doomed(self._keep, self._generation, self._told)
        if doomed or self._told_names:
            name = f"{self._generation:010d}-{self._tidied}"
            self._storage.put(f"{layout.GARBAGE}/{name}", doomed.dump())
            self._deletes, self._lists = doomed, [*self._told_names, name]
            self._told, self._told_names = Doomed(), []

    def _delete(self) -> None:
        """Manifests first: what has one is whole. What a new save names after all stays."""
        for name in sorted(self._deletes.saves):
            self._storage.delete(f"{layout.SAVES}/{name}")
            self._saves.pop(name, None)
        named = {one.name for save in self._saves.values() for one in save.objects}
        for name in sorted(self._deletes.objects - named):
            self._storage.delete(f"{layout.OBJECTS}/{name}")
        for name in self._lists:
            self._storage.delete(f"{layout.GARBAGE}/{name}")
        self._deletes, self._lists = Doomed(), []
        for name in self._storage.list(layout.LEADS):
            lead = layout.lead_of(name)
            if lead is not None and lead < self._generation:
                self._storage.delete(f"{layout.LEADS}/{name}")
        parts = set(self._storage.list(layout.PARTS))
        for name in parts & self._parts:  # of a process that ended while it wrote
            self._storage.delete(f"{layout.PARTS}/{name}")
        self._parts = parts - self._parts

    def _check_newest(self, stock: garbage.Stock) -> None:
        """Raises LostError if what was saved last is not there: it is then saved again."""
        newest = max(self._saves, key=lambda name: (self._saves[name].order, name))
        if newest not in stock.listed or not garbage.is_whole(self._saves[newest], stock.sizes):
            lost = {one.name for one in self._saves[newest].objects if stock.sizes.get(one.name) != one.size}
            self._places = {digest: one for digest, one in self._places.items() if one.name not in lost}
            del self._saves[newest]
            self._has_saved = False
            raise LostError(f"the store does not show the newest save in {self._storage.url}")

    def _adopt(self, one: Object) -> Object:
        """The same object, if an older world has sent it; else this one."""
        found = self._there.get(one.content)
        return one if found is None or found.size != one.size else Object(found.writer, one.chunks)

    def _check_there(self, objects: Mapping[str, Object]) -> None:
        """Raises LostError if the store does not show all of these. They are sent again at the next attempt."""
        sizes = self._storage.list(layout.OBJECTS)
        absent = {name for name, one in objects.items() if sizes.get(name) != one.size}
        if absent:
            self._there = {}
            self._places = {digest: one for digest, one in self._places.items() if one.name not in absent}
            raise LostError(f"the store {self._storage.url} does not show {len(absent)} objects that it has taken")

    def _check_lead(self) -> None:
        leads = map(layout.lead_of, self._storage.list(layout.LEADS))
        if any(lead is not None and lead > self._generation for lead in leads):
            raise OverError("an agent of a newer world writes to this archive")
