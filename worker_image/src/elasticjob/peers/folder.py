"""Reads and writes the script's checkpoint directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zipfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Final

from elasticjob.peers import tree
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import CHUNK_BYTES, LATEST_NS, File
from elasticjob.peers.watch import Stat

_NEVER_EMPTY: Final = (".pt", ".pth", ".ckpt", ".bin", ".distcp")
_MARK: Final = ".elasticjob-part-"  # of files that are being restored
_MOST_TOLD: Final = 200  # characters of a path
_NO_NAME: Final = (errno.ENAMETOOLONG, errno.EILSEQ)
_HOLE: Final = digest_of(bytes(CHUNK_BYTES))  # a chunk that needs no bytes on the disk
UNREADABLE: Final = Stat(0, 0, 0)  # of a path that is too long for the system: a script gets there with `chdir`


class UnfitError(Exception):
    """The file system of this pod cannot have a file of this name."""


def scan(root: Path) -> dict[str, Stat]:
    """All files and symbolic links below `root`, by relative path; and what cannot be looked at, which has no size."""
    found = {}

    def note(error: OSError) -> None:
        if error.errno == errno.ENAMETOOLONG:
            found[Path(error.filename).relative_to(root).as_posix()] = UNREADABLE

    for where, names in tree.walk(os.fspath(root), note):
        for name in names:
            path = Path(where, name)
            stat = scan_one(path)
            if stat is not None:
                found[path.relative_to(root).as_posix()] = stat
    return found


def scan_one(path: Path) -> Stat | None:
    """None if the file is gone."""
    try:
        stat = path.lstat()
    except OSError as error:
        return UNREADABLE if error.errno == errno.ENAMETOOLONG else None
    return Stat(stat.st_size, stat.st_mtime_ns, stat.st_ino)


def can_copy(path: Path, root: Path) -> bool:
    """Whether this is a file, or a link inside of `root`."""
    try:
        return read_link(path, root) is not None if path.is_symlink() else path.is_file()
    except OSError:  # it is gone
        return False


def read_link(path: Path, root: Path) -> str | None:
    """Where a link points to, relative to its folder; None if that is not below it, or outside of `root`.

    A link to a full path means the same in each pod, and is recorded like a relative one. Raises OSError.
    """
    link = path.readlink()
    if link.is_absolute():
        inside = next((link.relative_to(one) for one in (root, root.resolve()) if link.is_relative_to(one)), None)
        if inside is None:
            return None
        link = Path(os.path.relpath(root / inside, path.parent))
    try:
        is_inside = (path.parent / link).resolve().is_relative_to(root.resolve())
    except RuntimeError:  # a link to itself
        return None
    return link.as_posix() if is_inside and ".." not in link.parts and link.parts else None


def read_file(path: Path, root: Path) -> File | None:
    """The file's size and digests; None if it is gone, or is nothing that can be copied."""
    try:
        stat = path.lstat()
        if path.is_symlink():
            link = read_link(path, root)
            return None if link is None else File(0, 0, (), link, _time_of(stat))
        if not path.is_file():
            return None
        digests = tuple(digest_of(chunk) for chunk in read_chunks(path))
    except OSError:
        return None
    return File(stat.st_size, stat.st_mode & 0o777, digests, "", _time_of(stat))


def _time_of(stat: os.stat_result) -> int:
    """When a file was written, as a record can say it: a clock may be wrong, or a file from an archive."""
    return min(max(stat.st_mtime_ns, 0), LATEST_NS)


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file's content, CHUNK_BYTES at a time. Raises OSError."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def read_chunk(path: Path, index: int) -> bytes:
    """One chunk; empty if the file is gone or has become shorter, or something else is in its place."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(index * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)
    except OSError:
        return b""


def is_cut_off(path: Path) -> bool:
    """Whether the file's format says that its end is missing; False for formats that do not tell, and for no file."""
    try:
        if not path.is_file():  # opening a pipe waits for its writer
            return False
        with path.open("rb") as file:
            head = file.read(8)
            if not head and path.suffix in _NEVER_EMPTY:
                return True
            if head[:4] == b"PK\x03\x04":  # torch.save, npz
                return not zipfile.is_zipfile(path)
            if path.suffix != ".safetensors" or len(head) < 8:
                return path.suffix == ".safetensors"
            length = int(struct.unpack("<Q", head)[0])
            if length > path.stat().st_size:
                return True
            tensors = json.loads(file.read(length))
            ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
            return path.stat().st_size < 8 + length + int(max(ends, default=0))
    except OSError:  # it is gone
        return False
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return path.suffix == ".safetensors"


def find_open(root: Path, pids: list[int], proc: Path = Path("/proc")) -> dict[str, bool]:
    """The files that these processes or their children have open for writing; True where they only append."""
    real = root.resolve()
    found: dict[str, bool] = {}
    while pids:
        folder = proc / str(pids.pop())
        with contextlib.suppress(OSError):
            for thread in (folder / "task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
        with contextlib.suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                for path, appends in _find_written(descriptor, real, folder):
                    found[path] = appends and found.get(path, True)
    return found


def _find_written(descriptor: Path, root: Path, process: Path) -> Iterator[tuple[str, bool]]:
    with contextlib.suppress(OSError, ValueError):
        target = descriptor.readlink()
        if target.is_relative_to(root):
            said = (process / "fdinfo" / descriptor.name).read_text()
            flags = int(next(line for line in said.splitlines() if line.startswith("flags:")).split()[1], 8)
            if flags & os.O_ACCMODE:
                yield target.relative_to(root).as_posix(), bool(flags & os.O_APPEND)


def restore(root: Path, path: str, file: File, fetch: Callable[[str], bytes]) -> None:
    """Write one file, and let it appear whole. `fetch` returns a chunk by its digest, and may raise.

    Raises OSError, and UnfitError if no file here can have this path.
    """
    try:
        _restore(root, path, file, fetch)
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        raise UnfitError(describe_unfit(path, error.strerror)) from None


def find_room(file: File) -> int:
    """The bytes that `restore` writes: holes need none."""
    starts = range(0, file.size, CHUNK_BYTES)
    held = (start for start, digest in zip(starts, file.chunks, strict=False) if digest != _HOLE)
    return sum(min(CHUNK_BYTES, file.size - start) for start in held)


def describe_unfit(path: str, problem: str | None = os.strerror(errno.ENAMETOOLONG)) -> str:
    return f"{path[:_MOST_TOLD]!r} ({len(os.fsencode(path))} bytes): {problem}"


def _restore(root: Path, path: str, file: File, fetch: Callable[[str], bytes]) -> None:
    target = root / path
    _make_folders(root, target.parent)
    if target.is_dir() and not target.is_symlink():
        tree.remove(os.fspath(target))
    part = root / f"{_MARK}{os.getpid()}"
    part.unlink(missing_ok=True)
    try:
        if file.link:
            part.symlink_to(file.link)
        else:
            with part.open("wb") as out:
                for digest in file.chunks:
                    if digest == _HOLE:
                        out.seek(CHUNK_BYTES, os.SEEK_CUR)
                    else:
                        out.write(fetch(digest))
                out.truncate(file.size)
            part.chmod(file.mode)
        os.utime(part, ns=(file.mtime_ns, file.mtime_ns), follow_symlinks=False)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _make_folders(root: Path, folder: Path) -> None:
    """Make folders below `root`. A file or a link in the place of one is removed: nothing is written through a link."""
    place = root
    for part in folder.relative_to(root).parts:
        place /= part
        if place.is_symlink() or place.is_file():
            place.unlink()
        place.mkdir(exist_ok=True)


def remove_all_but(root: Path, kept: Container[str]) -> None:
    """Remove all files whose paths are not in `kept`, and folders that are empty then."""
    for path, stat in scan(root).items():
        if path not in kept and stat != UNREADABLE:
            (root / path).unlink(missing_ok=True)
    for where in reversed([where for where, _ in tree.walk(os.fspath(root), lambda _: None)]):
        if Path(where) != root:
            with contextlib.suppress(OSError):
                Path(where).rmdir()
