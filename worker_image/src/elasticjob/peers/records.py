"""What a checkpoint directory contained at one moment, and what the pods of a world report of theirs. Pure.

Content is addressed by its SHA-256, chunk by chunk, so an unchanged file costs nothing to record or to copy again. What
comes from JSON is checked: a path stays below the directory, and a file has as many chunks as its size needs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

CHUNK_BYTES: Final = 4 << 20
LATEST_NS: Final = 2**63 - 1  # the latest time of a file: of the year 2262
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TORCH_PART: Final = ".distcp"  # written by torch.distributed.checkpoint, one or more by each rank ...
_WAIT_NS: Final = 60 * 10**9  # so long after its part of a folder a pod's other files wait for the parts of others
_TORCH_END: Final = ".metadata"  # ... and this one by the coordinator, when all ranks have written theirs


class RecordError(ValueError):
    """What a peer or a file says is not valid."""


@dataclass(frozen=True)
class File:
    """One file, or a symbolic link to `link`."""

    size: int  # bytes
    mode: int  # permissions
    chunks: tuple[str, ...]  # SHA-256 (hex) of each CHUNK_BYTES, in order
    link: str = ""
    mtime_ns: int = field(default=0, compare=False)  # restored, because scripts order checkpoints by it

    def dump(self) -> list[Any]:
        return [self.size, self.mode, list(self.chunks), self.link, self.mtime_ns]


Files = Mapping[str, File]  # by path relative to the directory, with `/`


@dataclass(frozen=True)
class Record:
    """A complete checkpoint directory. The one with the highest `order` is the newest."""

    generation: int
    number: int  # counts on over generations
    files: Files
    shared: bool = False  # a folder in it was written by all pods, so a folder of one pod is not complete

    @property
    def order(self) -> tuple[int, int]:
        return self.generation, self.number

    @functools.cached_property  # of large jobs it names thousands of files, and is asked for once for each pod
    def name(self) -> str:
        """Unique for this content: two leaders may give the same number."""
        digest = hashlib.sha256(json.dumps(dump_files(self.files), sort_keys=True).encode()).hexdigest()
        return f"{self.generation}-{self.number}-{digest[:16]}"

    def dump(self) -> bytes:
        said = {"generation": self.generation, "number": self.number, "shared": self.shared}
        return json.dumps({**said, "files": dump_files(self.files)}).encode()


@dataclass(frozen=True)
class Report:
    """What one pod says of its directory."""

    files: Files = field(default_factory=dict)  # finished files that it wrote: not those that were restored
    gone: frozenset[str] = frozenset()  # paths of the last record that its script has deleted
    unready: frozenset[str] = frozenset()  # entries (see `entry_of`) that are being written or copied
    copies: int = 0  # other pods that hold each of its files, at least

    def dump(self) -> bytes:
        lists = {"gone": sorted(self.gone), "unready": sorted(self.unready)}
        return json.dumps({"files": dump_files(self.files), "copies": self.copies, **lists}).encode()


def entry_of(path: str) -> str:
    """The file or folder directly in the directory that this path belongs to: it is finished as a whole."""
    return path.partition("/")[0]


def digests_of(files: Files) -> frozenset[str]:
    return frozenset(digest for file in files.values() for digest in file.chunks)


def combine(before: Record | None, reports: Sequence[Report], *, all_there: bool = True) -> tuple[Files, bool]:
    """The files of the directory after these reports, by rank, and whether all pods write into one folder.

    An entry that is not finished in some pod, or of which a part is missing, stays as it was. So do, for a while, the
    single files that a pod wrote after its part of such a folder, and what it deleted: they may be of the same save. If
    several pods wrote the same path, the lowest rank counts.

    `all_there`: whether every pod that may have written is among these. Else a part of any new folder may be missing.
    """
    unready = frozenset().union(*(report.unready for report in reports))
    gone = frozenset().union(*(report.gone for report in reports))
    files, shared, waiting = _merge(before, reports, gone, unready, all_there=all_there)
    waits = [_find_wait(report, waiting) for report in reports]
    if all(wait is None for wait in waits):
        return files, shared
    old: Files = {} if before is None else before.files
    gone = frozenset().union(*(report.gone for report, wait in zip(reports, waits, strict=True) if wait is None))
    files, shared, _ = _merge(before, reports, gone, unready, all_there=all_there)
    for report, wait in zip(reports, waits, strict=True):
        for path, file in report.files.items():
            if wait is not None and "/" not in path and file.mtime_ns >= wait and path in files:
                del files[path]
                files.update({path: old[path]} if path in old else {})
    return files, shared


def _merge(
    before: Record | None,
    reports: Sequence[Report],
    gone: Collection[str],
    unready: Collection[str],
    *,
    all_there: bool,
) -> tuple[dict[str, File], bool, set[str]]:
    """As `combine`, entry by entry, and the entries that some pods have finished, but not all of their writers."""
    shared = before is not None and before.shared
    written: dict[str, File] = {}
    writers: dict[str, set[int]] = {}
    for rank in reversed(range(len(reports))):
        written.update(reports[rank].files)
        for path in reports[rank].files:
            writers.setdefault(entry_of(path), set()).add(rank)
    old: Files = {} if before is None else before.files
    files = {path: file for path, file in old.items() if path not in gone or entry_of(path) in unready}
    waiting = writers.keys() & set(unready)
    for entry in writers.keys() - set(unready):
        new = {path: file for path, file in written.items() if entry_of(path) == entry}
        is_folder = any("/" in path for path in new)
        may_lack = is_folder and not all_there and any(old.get(path) != file for path, file in new.items())
        if not may_lack and _is_complete({**files, **new}, new, writers[entry], len(reports), shared=shared):
            files.update(new)
            shared = shared or (is_folder and 1 < len(writers[entry]) == len(reports))
        else:
            waiting.add(entry)
    return files, shared, waiting - set(map(entry_of, gone))


def _find_wait(report: Report, waiting: Collection[str]) -> int | None:
    """Since when (mtime) a folder that this pod wrote into waits for the other pods; None if none does.

    Meanwhile what the pod writes beside it may name that folder, and what it deletes may be replaced by it.
    """
    newest = max((file.mtime_ns for file in report.files.values()), default=0)
    parts: dict[str, int] = {}
    for path, file in report.files.items():
        if "/" in path and entry_of(path) in waiting:
            parts[entry_of(path)] = max(parts.get(entry_of(path), 0), file.mtime_ns)
    return min((time for time in parts.values() if newest - time <= _WAIT_NS), default=None)


def _is_complete(files: Files, new: Files, writers: Collection[int], members: int, *, shared: bool) -> bool:
    """Whether the parts of all writers of an entry are there. `files`: of the directory, if it is."""
    for folder in {str(PurePosixPath(path).parent) for path in new if path.endswith(_TORCH_PART)}:
        if str(PurePosixPath(folder, _TORCH_END)) not in files:
            return False
    if any(PurePosixPath(path).name == _TORCH_END for path in new) or not any("/" in path for path in new):
        return True
    return len(writers) == members or (len(writers) == 1 and not shared)


def check_digest(said: Any) -> str:
    """The digest that another agent names. Raises ValueError if it is none."""
    if not isinstance(said, str) or not is_digest(said):
        raise ValueError("no digest")
    return said


def check_count(said: Any, *, most: int = 2**63 - 1) -> int:
    """The number that another agent or a store names. Raises ValueError if it is no count, or more than `most`."""
    if not _is_count(said) or said > most:
        raise ValueError("no count")
    return int(said)


def parse_digests(body: bytes) -> list[str]:
    """Those that another agent names. Raises ValueError."""
    return [check_digest(one) for one in json.loads(body)]


def name_of(record: Record | None) -> str:
    """The name of a record; empty if there is none."""
    return "" if record is None else record.name


def covers(record: Record | None, report: Report, left_out: Collection[str] = ()) -> bool:
    """Whether everything in this report is in the record, apart from entries that are left out for good."""
    if not report.unready <= set(left_out):
        return False
    files: Files = {} if record is None else record.files
    return all(files.get(path) == file for path, file in report.files.items()) and not report.gone & files.keys()


def choose_kept(records: Iterable[Record]) -> list[Record]:
    """The records to keep, oldest first: the last two, since the newest may not be complete anywhere."""
    return sorted(records, key=lambda record: record.order)[-2:]


# JSON.


def dump_files(files: Files) -> dict[str, list[Any]]:
    return {path: file.dump() for path, file in sorted(files.items())}


def parse_record(data: bytes) -> Record:
    """Raises RecordError."""
    return read_record(_object(data))


def read_record(said: Any) -> Record:
    """The record in a part of what an archive says. Raises RecordError."""
    if not isinstance(said, dict):
        raise RecordError("no object")
    numbers = (said.get("generation"), said.get("number"))
    if not all(_is_count(number) for number in numbers):
        raise RecordError("a record needs a generation and a number")
    return Record(int(said["generation"]), int(said["number"]), _parse_files(said), said.get("shared") is True)


def parse_report(data: bytes) -> Report:
    """Raises RecordError."""
    return read_report(_object(data))


def read_report(said: Mapping[str, Any]) -> Report:
    """The report in a part of what another agent says. Raises RecordError."""
    copies, gone, unready = said.get("copies"), said.get("gone"), said.get("unready")
    if not _is_count(copies) or not _is_texts(gone) or not _is_texts(unready):
        raise RecordError("a report needs copies, gone and unready")
    return Report(_parse_files(said), frozenset(gone or ()), frozenset(unready or ()), int(copies or 0))


def _object(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from None
    if not isinstance(said, dict):
        raise RecordError("no object")
    return said


def _parse_files(said: Mapping[str, Any]) -> Files:
    files = said.get("files")
    if not isinstance(files, dict):
        raise RecordError("files are missing")
    for path in files:
        if not is_inside(path):
            raise RecordError(f"{path!r} is no path in the directory")
    return {path: _parse_file(path, file) for path, file in files.items()}


def is_inside(path: str) -> bool:
    """Whether this is a relative path that stays below its directory, and that a file can have."""
    parts = path.split("/")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return "\0" not in path and all(part not in ("", ".", "..") for part in parts)


def _parse_file(path: str, said: Any) -> File:
    if not isinstance(said, list) or len(said) != 5:
        raise RecordError(f"{path}: no file")
    size, mode, chunks, link, mtime = said
    if not all(_is_count(value) for value in (size, mode, mtime)) or not isinstance(link, str):
        raise RecordError(f"{path}: no numbers")
    if not _is_texts(chunks) or not all(_DIGEST.fullmatch(chunk) for chunk in chunks):
        raise RecordError(f"{path}: no digests")
    if len(chunks) != (0 if link else -(-size // CHUNK_BYTES)):
        raise RecordError(f"{path}: {len(chunks)} chunks for {size} bytes")
    if link and not is_inside(link):
        raise RecordError(f"{path}: a link out of the directory")
    return File(size, mode & 0o777, tuple(chunks), link, mtime)


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def find_held(held: Sequence[int], wanted: int, newest: int) -> int:
    """The newest record that at least `wanted` other pods have; 0: none. `held` has the newest record of each."""
    if wanted == 0:
        return newest
    return sorted(held, reverse=True)[wanted - 1] if len(held) >= wanted else 0
