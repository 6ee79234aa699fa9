"""A folder of this machine as a store, and one that somebody else may write to, in which no link is followed.

Whoever prunes or pulls the archive of a job with more rights than the pods of that job would else delete and read where
a link of theirs leads, as in the archive of another job. Each folder is opened below the one before, so it does not
matter what becomes a link meanwhile.

That of fsspec would not do: it depends on its version whether a file can be moved to a folder that is not there, and
what is listed of a folder of which a file goes meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

_BELOW: Final = 3  # parts of a path that are the job's, as in NAMESPACE/JOB/UID: what is above is whose machine it is


class LinkError(OSError):
    """What was named is a link, or nothing that an archive has."""


class Folder:
    """What `Storage` needs of a file system, for paths below `root`."""

    def __init__(self, root: str, *, follows_links: bool) -> None:
        self._follows_links = follows_links
        parts = PurePosixPath(root).parts[1:]
        above = len(parts) if follows_links else max(1, len(parts) - _BELOW)
        self._root, self._top, self._below = root, "/" + "/".join(parts[:above]), parts[above:]

    def invalidate_cache(self) -> None:
        """There is none."""

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """The files of a folder; links and folders in it are left out, and what goes meanwhile."""
        found = list[dict[str, Any]]()
        with self._open_folder(self._parts_of(path)) as folder, os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        found.append({"name": entry.name, "size": _size_of(entry), "type": "file"})
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with self._open_parent(path) as (folder, name):
            number = os.open(name, os.O_RDONLY | self._link_flag | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(number, "rb") as file:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise LinkError(f"{path} is no file")
            file.seek(start or 0)
            if end is None:
                return file.read()
            return file.read(max(0, min(end, found.st_size) - (start or 0)))  # which takes so much memory

    def rm_file(self, path: str) -> None:
        with self._open_parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        part = uuid.uuid4().hex
        with self._open_folder((*self._below, "parts"), makes=True) as parts:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(part, flags, 0o666, dir_fd=parts), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                with self._open_parent(path, makes=True) as (folder, name):
                    os.rename(part, name, src_dir_fd=parts, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=parts)
                raise

    @property
    def _link_flag(self) -> int:
        return 0 if self._follows_links else os.O_NOFOLLOW

    def _parts_of(self, path: str) -> tuple[str, ...]:
        return (*self._below, *PurePosixPath(path).relative_to(self._root).parts)

    @contextlib.contextmanager
    def _open_parent(self, path: str, *, makes: bool = False) -> Iterator[tuple[int, str]]:
        *above, name = self._parts_of(path)
        with self._open_folder(above, makes=makes) as folder:
            if not self._follows_links and _is_link(name, folder):
                raise LinkError(f"{path} is a link")
            yield folder, name

    @contextlib.contextmanager
    def _open_folder(self, parts: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        """A number for the folder; it is made if `makes`. Raises OSError."""
        if makes:
            os.makedirs(self._top, exist_ok=True)  # noqa: PTH103 - a text, as all paths here
        number = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for index, part in enumerate(parts):
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=number)
                if not self._follows_links and _is_link(part, number):
                    place = "/".join((self._top, *parts[: index + 1]))
                    raise LinkError(f"{place} is a link: if it is yours, name the folder that it leads to")
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | self._link_flag | os.O_CLOEXEC, dir_fd=number)
                os.close(number)
                number = inner
            yield number
        finally:
            os.close(number)


def _is_link(name: str, folder: int) -> bool:
    """Whether this is what to say: what is opened is not followed anyway."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _size_of(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_size
