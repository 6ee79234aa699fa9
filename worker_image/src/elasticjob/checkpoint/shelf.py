"""Snapshots in shared memory: files in a folder that the agent owns, so that they outlive the process of the script.

Each part of a state has two slots, which are written in turn. A slot is a file with the data, and a small JSON file
that says what it is. The JSON file is removed before the data changes and renamed into place when they are complete.
So a process that is killed in the middle leaves the snapshot before.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import mmap
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from elasticjob import env
from elasticjob.checkpoint.snapshots import Held
from elasticjob.collectives import skeletons

_log = logging.getLogger("elasticjob.checkpoint.shelf")
_ALIGN = 64
_SCRIPTS = 1 << 30  # bytes of shared memory that are left to the script, at most: the doctor asks for as many


class Registrar(Protocol):
    """A device that copies faster into host memory that it knows."""

    def register(self, data: torch.Tensor) -> bool:
        """Until the tensor is freed. False if it cannot."""


class SnapshotError(RuntimeError):
    """A snapshot cannot be written or read. The message says why."""


def find_shelf(directory: Path) -> Shelf | None:
    """The shelf of this pod for checkpoints in `directory`; None without an agent that offers memory."""
    memory = os.environ.get(env.MEMORY)
    if not memory:
        return None
    return Shelf(Path(memory) / hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:16])


def place(sizes: list[int]) -> tuple[list[int], int]:
    """The offset of each tensor, aligned for every dtype, and the size of all, in bytes. Pure."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGN) * _ALIGN
    return offsets, end


def limit(total: int) -> int:
    """How much of a shared memory snapshots may take: loaders, gloo and NCCL need the rest. 0: it has no end. Pure."""
    return total - min(total // 2, _SCRIPTS)


class Shelf:
    """The snapshots of one `Checkpointer` in this pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registrar: Registrar | None = None
        self._open: dict[Path, _Memory] = {}
        self._next: dict[int, int] = {}  # the slot to write next, by part

    def held(self) -> list[Held]:
        """The complete snapshots."""
        return [held for _, held, _ in self._entries()]

    def begin(self, part: int, size: int) -> Slot:
        """A slot for `size` bytes, which holds no snapshot from now on. Raises SnapshotError if there is no memory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if part not in self._next:
            newest = max(
                ((held.step, path.stem) for path, held, _ in self._entries() if held.part == part), default=None
            )
            self._next[part] = int(newest is not None and newest[1].endswith("-0"))
        self.prepare(part, size)  # both, or none: one alone would only take the script's memory
        entry = self.folder / f"part{part}-{self._next[part]}.json"
        self._next[part] = 1 - self._next[part]
        entry.unlink(missing_ok=True)
        memory = self._open[entry.with_suffix(".data")]
        return Slot(entry, memory.data[:size], memory)

    def prepare(self, part: int, size: int) -> None:
        """Make room for two snapshots of this size, which takes its time at first. Raises SnapshotError."""
        missing = [path for path in self._slots(part) if not self._has(path, size)]
        if not missing:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other ranks make room as well
            _reserve(missing, size)
        except OSError as error:
            raise SnapshotError(
                f"there is no room for two snapshots of {size / 2**20:.0f} MiB in {self.folder.parent}"
                f" ({error.strerror}): mount an emptyDir with medium Memory and a larger sizeLimit at /dev/shm, and"
                " raise the container's memory limit"
            ) from None
        finally:
            os.close(lock)
        for path in missing:
            self._open.pop(path, None)
            self._open[path] = _Memory(path, size, self.registrar)

    def is_registered(self, part: int, size: int) -> bool:
        """Whether the device knows the memory of both snapshots of this size."""
        return all(self._has(path, size) and self._open[path].is_registered for path in self._slots(part))

    def _slots(self, part: int) -> list[Path]:
        return [self.folder / f"part{part}-{number}.data" for number in (0, 1)]

    def _has(self, path: Path, size: int) -> bool:
        return path in self._open and self._open[path].data.numel() == max(size, 1)

    def read(self, world: str, step: int, part: int) -> tuple[str, torch.Tensor]:
        """The plain data and a copy of the bytes of a snapshot. Raises SnapshotError if it is gone or damaged."""
        for path, held, rest in self._entries():
            if (held.world, held.step, held.part) == (world, step, part):
                try:
                    raw = bytearray(path.with_suffix(".data").read_bytes()[: int(rest["size"])])
                except OSError as error:
                    raise SnapshotError(f"the snapshot of step {step} cannot be read: {error}") from None
                data = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
                if data.numel() != rest["size"] or skeletons.digest(data) != rest["digest"]:
                    raise SnapshotError(f"the snapshot of step {step} is damaged: its checksum is wrong")
                return str(rest["text"]), data
        raise SnapshotError(f"the snapshot of step {step} is gone")

    def keep_only(self, world: str, step: int) -> None:
        """Drop all other snapshots: the world goes on from this one."""
        kept = {path.stem for path, held, _ in self._entries() if (held.world, held.step) == (world, step)}
        for path in self.folder.glob("part*"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)
        self._open.clear()

    def _entries(self) -> list[tuple[Path, Held, dict[str, Any]]]:
        found = []
        for path in sorted(self.folder.glob("part*.json")):
            try:
                raw = json.loads(path.read_text())
                held = Held(**{name: raw.pop(name) for name in ("world", "step", "part", "parts")})
            except (OSError, ValueError, KeyError, AttributeError):
                continue  # removed meanwhile
            found.append((path, held, raw))
        return found


class Slot:
    """Room for one snapshot, as a tensor of bytes in shared memory."""

    def __init__(self, entry: Path, data: torch.Tensor, memory: _Memory) -> None:
        self._entry = entry
        self._memory = memory  # is registered as long as something copies into it
        self.data = data

    def commit(self, held: Held, text: str) -> bool:
        """The data are complete. `text`: the plain data that belong to them. False if there is no room for these."""
        rest = {"size": self.data.numel(), "digest": skeletons.digest(self.data), "text": text}
        temporary = self._entry.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(asdict(held) | rest))
            temporary.replace(self._entry)
        except OSError as error:
            _log.warning("No snapshot of step %d in memory: %s.", held.step, error)
            return False
        return True


class _Memory:
    """The mapped file of a slot."""

    def __init__(self, path: Path, size: int, registrar: Registrar | None) -> None:
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), max(size, 1))
        self.data = torch.frombuffer(self._mapped, dtype=torch.uint8)
        self.is_registered = registrar is not None and registrar.register(self.data)


def _reserve(paths: list[Path], size: int) -> None:
    """Let each file have so many bytes, and leave what is in it: it may be the snapshot that was restored.

    Without the reservation, a write to a full file system would kill the process. Raises OSError if there is no room;
    then there are no new files.
    """
    new = [path for path in paths if not path.exists()]
    memory = paths[0].parent.parent
    held = {path: path.stat().st_size for path in memory.glob("*/part*.data")}
    room = os.statvfs(memory)
    total = room.f_blocks * room.f_frsize
    wanted = sum((held | {path: max(size, held.get(path, 0)) for path in paths}).values())
    if total and wanted > limit(total):
        text = f"{(total - limit(total)) / 2**20:.0f} of its {total / 2**20:.0f} MiB are left to the script"
        raise OSError(errno.ENOSPC, text)
    try:
        for path in paths:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError:
        for path in new:
            path.unlink(missing_ok=True)
        raise
