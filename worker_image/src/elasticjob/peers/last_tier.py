"""What the keeper of a pod needs of a store that outlives all pods. `elasticjob.archive` has one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elasticjob.peers.records import Record

Pause = Callable[[], None]  # is called while the store is awaited; raises what ends the wait
Keep = Callable[[str, bytes], bool]  # keeps a checked chunk as a copy, in any thread; False: there is no room for more
Call = Callable[..., tuple[dict[str, Any], bytes]]  # rank, operation and body: a request to the agent of this rank


@dataclass(frozen=True)
class Saved:
    """A whole save in the store: where its manifest is, and what it restores in this world."""

    url: str
    name: str
    record: Record


class Source(Protocol):
    """A save that is being restored."""

    @property
    def record(self) -> Record: ...

    def find_owner(self, digest: str) -> int:
        """The rank that reads this chunk for all pods of the world."""

    def read_share(self, keep: Keep, pause: Pause, *, packs_only: bool) -> None:
        """Keep the chunks that this rank reads for all, as far as there is room. Raises PeerError for one that is lost.

        `packs_only`: without those that lie alone, which `read` gets as well.
        """

    def expect(self, digests: Sequence[str], keep: Keep) -> None:
        """`read` is asked for these next, in this order: the first of them are read, and kept, meanwhile."""

    def read(self, digest: str, pause: Pause) -> bytes:
        """One chunk. Raises PeerError if it is missing or damaged."""


@dataclass(frozen=True)
class Members:
    """The world, as the store's thread sees it."""

    generation: int
    rank: int
    size: int
    call: Call
    find_writers: Callable[[Record], Mapping[str, Sequence[int]]]  # ranks that have written these chunks, by digest
    shut: Callable[[], None]  # ends all requests, from any thread ...
    close: Callable[[], None]  # ... and then their connections
    has_left: Callable[[int], bool] = lambda rank: False  # whether this rank has gone, and is not to be waited for


class LastTier(Protocol):
    """The store."""

    def find(
        self, pause: Pause, *, is_needed: bool, is_fresh: bool = False, lost: Collection[str] = ()
    ) -> Sequence[Saved]:
        """The newest saves of this job, newest first; of another job, where this one is to begin from that.

        `is_needed`: nothing else has a checkpoint, so an answer is awaited. Else none is as good as no save.
        `is_fresh`: this job can have saved nothing, so that an answer is awaited only where it begins from another.
        `lost`: names of records that could not be restored.
        """

    def open(self, saved: Mapping[str, Any], place: tuple[int, int], pause: Pause) -> Source | None:
        """One of them, as another rank has named it. `place`: rank and size. None if it is lost."""

    def enter(self, members: Members) -> None:
        """A world begins."""

    def leave(self) -> None:
        """It is over."""

    def offer(self, record: Record, step: int | None) -> None:
        """At rank 0: this is the newest record that enough pods have."""

    def hurry(self, generation: int, record: Record, step: int | None) -> None:
        """At rank 0, while nobody trains: have this record saved now, as fast as possible; not in another world."""

    def take(self, header: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        """At other ranks: what rank 0 asks this one to send. Returns how far that is."""

    def await_saved(self, record: Record | None, step: int | None, seconds: float, *, is_newest: bool = True) -> bool:
        """At rank 0, before all pods go: have this record saved now. False if it was not in time.

        `is_newest`: it has all that the scripts have saved; else what is missing is told as lost.
        """

    @property
    def saved_name(self) -> str:
        """The name of the record that was saved last in this world; "" for none."""

    def close(self) -> None: ...
