"""How saves lie in the archive of a job: names, manifests, and who sends what. Pure.

    saves/<generation>-<number>-<SHA-256>    the manifest of a save, written last: without it there is no save
    objects/<generation>-<count>-<SHA-256>   chunks, of which a manifest says the place
    leads/<generation>                       the agent of rank 0 of this generation writes, or has written
    garbage/<generation>-<count>             what is to be deleted by an agent ...
    garbage/<generation>-prune-<UUID>        ... or by `elasticjob archive prune`, which leads no generation

No name is ever used again: objects bear the generation of the world that sent them, how often its leader had tidied up
by then, and the digest of what is in them. So nothing that was to be deleted can be deleted too late.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elasticjob.peers import records
from elasticjob.peers.records import CHUNK_BYTES, Files, Record, RecordError

SAVES, OBJECTS, LEADS, GARBAGE, PARTS = "saves", "objects", "leads", "garbage", "parts"
PRUNES: Final = "-prune-"  # in the name of what says what `elasticjob archive prune` deletes
ALONE: Final = 1 << 20  # bytes from which on a chunk is an object of its own: smaller ones are packed ...
PACK: Final = 8 << 20  # ... into objects of at most so many
MOST_MANIFEST: Final = 512 << 20  # bytes of a manifest, packed or not, as of a save of 13 TB ...
MOST_VALUES: Final = 1 << 25  # ... and commas and opening brackets in it: a value may take 50 times as much as its text
_MOST_STEP: Final = 2**53  # as the hub takes it
_MOST_TIME: Final = 64  # characters
_NAMED: Final = re.compile(r"(\d{10})-(\d{6})-([0-9a-f]{64})")
_SAVED: Final = re.compile(r"(\d{10})-(\d{10})-([0-9a-f]{64})")
_LEADS: Final = re.compile(r"[0-9]{10,16}")
_VERSION: Final = 1

Order = tuple[int, int]  # of a save: generation and number of its record
Writer = tuple[int, int]  # of an object: generation of the world, and how often its leader had tidied up


class ManifestError(ValueError):
    """What was read is no manifest, or a part of one."""


class TooLargeError(ManifestError):
    """Nobody reads so much."""


class CutManifestError(ManifestError):
    """These are not the bytes that were written: another attempt may get them."""


@dataclass(frozen=True)
class Object:
    """An object of the store: these chunks, one after the other."""

    writer: Writer
    chunks: tuple[tuple[str, int], ...]  # digest and size of each

    @functools.cached_property
    def content(self) -> str:
        """A digest of the digests: who plans an object need not have its bytes."""
        digests = [digest for digest, _ in self.chunks]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    @functools.cached_property
    def name(self) -> str:
        return f"{self.writer[0]:010d}-{self.writer[1]:06d}-{self.content}"

    @property
    def size(self) -> int:
        return sum(size for _, size in self.chunks)

    def dump(self) -> list[Any]:
        return [list(self.writer), [list(chunk) for chunk in self.chunks]]


def parse_object(said: Any) -> Object:
    """Raises ManifestError."""
    try:
        (generation, count), chunks = said
        found = tuple((records.check_digest(digest), records.check_count(size)) for digest, size in chunks)
        if not found or not all(0 < size <= CHUNK_BYTES for _, size in found):
            raise ValueError("no chunks")
        if len(found) > 1 and sum(size for _, size in found) > PACK:
            raise ValueError("it is larger than a pack")
        return Object((records.check_count(generation), records.check_count(count)), found)
    except (TypeError, ValueError) as error:
        raise ManifestError(f"no object: {error}") from None


@dataclass(frozen=True)
class Save:
    """One checkpoint in the archive."""

    job: str  # UID
    record: Record
    step: int | None  # that the script had reported when its last file was written; None: it reports none
    time: str  # when it was archived, by the clock of the pod
    objects: tuple[Object, ...]  # those that have its chunks; they may have others too

    @property
    def order(self) -> Order:
        return self.record.order

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.record.files.values())

    @property
    def named(self) -> int:
        """How many files and chunks it names, in its record and its objects: so much memory does it take."""
        files = self.record.files.values()
        return len(files) + sum(len(file.chunks) for file in files) + sum(len(one.chunks) for one in self.objects)

    def dump(self) -> bytes:
        """Raises TooLargeError."""
        return gzip.compress(self.dump_plain(), 1, mtime=0)

    def dump_plain(self) -> bytes:
        """The same before it is packed. Raises TooLargeError."""
        said = {
            "version": _VERSION,
            "job": self.job,
            "step": self.step,
            "time": self.time,
            "objects": [one.dump() for one in self.objects],
        }
        text = json.dumps(said).encode()[:-1] + b', "record": ' + self.record.dump() + b"}"
        _check_size(text)
        return text


def name_save(order: Order, data: bytes) -> str:
    """The name of the manifest with these bytes."""
    return f"{order[0]:010d}-{order[1]:010d}-{hashlib.sha256(data).hexdigest()}"


def order_of(name: str) -> Order | None:
    """The order of a save, by the name of its manifest; None if it is not the name of one."""
    found = _SAVED.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def lead_of(name: str) -> int | None:
    """The generation of the lead of this name; None if it is not the name of one."""
    return int(name) if _LEADS.fullmatch(name) else None


def parse_name(name: str) -> tuple[Writer, str] | None:
    """Who wrote the object of this name, and its content; None if it is not the name of one."""
    found = _NAMED.fullmatch(name)
    return None if found is None else ((int(found[1]), int(found[2])), found[3])


def parse_save(name: str, data: bytes) -> Save:
    """The manifest of this name. Raises ManifestError if these are not all its bytes, or it is not whole in itself."""
    order = order_of(name)
    if order is None or name != name_save(order, data):
        raise CutManifestError(f"the manifest {name[:32]} is damaged, or was read only in part")
    try:
        said = read_json(_unpack(data))
        if said["version"] != _VERSION:
            raise ManifestError(f"the manifest {name[:32]} is of version {said['version']}: use a newer runtime")
        record = records.read_record(said["record"])
        step = said["step"]
        found = Save(
            job=str(said["job"]),
            record=record,
            step=None if step is None else records.check_count(step, most=_MOST_STEP),
            time=_check_time(said["time"]),
            objects=tuple(map(parse_object, said["objects"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError, RecordError, zlib.error, EOFError, OSError) as error:
        raise ManifestError(f"the manifest {name[:32]} cannot be understood: {error}") from None
    if record.order != order:
        raise ManifestError(f"the manifest {name[:32]} is of another record")
    if find_sizes(record.files).keys() - locate(found.objects).keys():
        raise ManifestError(f"the manifest {name[:32]} lacks chunks")
    return found


def _check_time(said: Any) -> str:
    if not isinstance(said, str) or len(said) > _MOST_TIME:
        raise ValueError("no time")
    return said


def _unpack(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(data, MOST_MANIFEST)
    if unpacker.unconsumed_tail:
        raise TooLargeError(f"it has more than {MOST_MANIFEST} bytes")
    return text


def read_json(text: bytes) -> Any:
    """Raises ValueError or RecursionError, and TooLargeError for what would fill the memory."""
    _check_size(text)
    return json.loads(text)


def _check_size(text: bytes) -> None:
    if len(text) > MOST_MANIFEST:
        raise TooLargeError(f"it has more than {MOST_MANIFEST} bytes")
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise TooLargeError(f"it has more than {MOST_VALUES} values")


def find_sizes(files: Files) -> dict[str, int]:
    """The size of each chunk of these files, by digest."""
    return {
        digest: min(CHUNK_BYTES, file.size - index * CHUNK_BYTES)
        for file in files.values()
        for index, digest in enumerate(file.chunks)
    }


@dataclass(frozen=True)
class Place:
    """Where a chunk lies: an object, and the first byte in it."""

    object: Object
    start: int


def locate(objects: Iterable[Object]) -> dict[str, Place]:
    """The place of each chunk of these objects."""
    found = {}
    for one in objects:
        start = 0
        for digest, size in one.chunks:
            found[digest] = Place(one, start)
            start += size
    return found


def assign(missing: Mapping[str, int], holders: Mapping[str, Sequence[int]]) -> dict[int, dict[str, int]]:
    """Who sends what: by rank, the chunks that it has to send, with their sizes. Each goes to one rank that has it.

    The same for all who know the same. A chunk that nobody holds is in no share.
    """
    shares: dict[int, dict[str, int]] = defaultdict(dict)
    load: dict[int, int] = defaultdict(int)
    for digest, size in sorted(missing.items(), key=lambda one: (-one[1], one[0])):
        ranks = holders.get(digest, ())
        if ranks:
            rank = min(ranks, key=lambda rank: (load[rank], rank))
            shares[rank][digest] = size
            load[rank] += size
    return dict(shares)


def pack(share: Mapping[str, int], writer: Writer) -> list[Object]:
    """The objects of these chunks: large ones alone, small ones together, in the order of their digests."""
    found: list[Object] = []
    together: list[tuple[str, int]] = []
    packed = 0
    for digest, size in sorted(share.items()):
        if size >= ALONE:
            found.append(Object(writer, ((digest, size),)))
            continue
        if packed + size > PACK:
            found.append(Object(writer, tuple(together)))
            together, packed = [], 0
        together.append((digest, size))
        packed += size
    return [*found, Object(writer, tuple(together))] if together else found


def share_of(objects: Iterable[Object], rank: int, size: int) -> Iterator[Object]:
    """The objects that this rank of `size` reads for all: each pod of a world gets the rest from the others."""
    for index, one in enumerate(sorted(objects, key=lambda one: one.name)):
        if index % size == rank:
            yield one


def find_owners(objects: Iterable[Object], size: int) -> dict[str, int]:
    """The rank of `size` that reads each chunk for all, as `share_of` has it."""
    ordered = sorted(objects, key=lambda one: one.name)
    return {digest: index % size for index, one in enumerate(ordered) for digest, _ in one.chunks}
