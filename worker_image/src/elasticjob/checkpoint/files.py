"""The files of a checkpoint: which are complete, which to keep. It uses neither torch nor collectives.

A checkpoint is a folder `step-00000100`. It is written as `.tmp-step-00000100`: each file is flushed, then the manifest
with the size and checksum of every file is written, and a rename makes the checkpoint visible. A folder with the final
name is therefore complete, unless the disk damaged it later, which the checksums detect. One that a kill left between
its manifest and its rename is adopted at the next start, and so is the one before it, which had the same name.

What is kept and restored is ordered by history, not by name: when a step is published, training has left all later ones
behind, and they are marked. They are restored last and deleted first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
STATE = "state.pt"
_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".tmp-"
_ASIDE = ".old-"  # the checkpoint that another one of its step replaces
_DELETED = ".deleted-"  # no writer finds it any more
_LOCK = ".writing"  # locked by the process that fills a temporary folder
_CHUNK = 1 << 20


def folder_name(step: int) -> str:
    """The folder name of a step's checkpoint; names sort in the order of steps."""
    return f"step-{step:08d}"


def temporary_name(step: int) -> str:
    return f"{_TEMPORARY}{folder_name(step)}"


def list_steps(names: Iterable[str]) -> list[int]:
    """The steps among these names, newest first; those that are not certified come after the others."""
    found = set(names)
    matches = (_NAME.fullmatch(name) for name in found)
    steps = [int(match.group(1)) for match in matches if match]
    return sorted(steps, key=lambda step: (marker_name(step) in found, -step))


def split_steps(names: Collection[str]) -> tuple[list[int], list[int]]:
    """The steps among these names that are of the present history and certified, and the others; newest first."""
    steps = list_steps(names)
    marked = [step for step in steps if marker_name(step) in names]
    return [step for step in steps if step not in marked], marked


def marker_name(step: int) -> str:
    """The name of the file that says that a step's checkpoint is not certified, or that training has gone back."""
    return f"{folder_name(step)}.uncertified"


def distrust(directory: Path, after: int) -> list[int]:
    """Mark all checkpoints after this step as not certified, also those that are being written; return their steps."""
    return _mark(directory, after, [path.name.removeprefix(_TEMPORARY) for path in _list(directory)])


def _mark(directory: Path, after: int, names: Iterable[str]) -> list[int]:
    steps = sorted(step for step in list_steps(names) if step > after)
    for step in steps:
        (directory / marker_name(step)).touch()
    return steps


def _list(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def find_torn(directory: Path) -> int | None:
    """The newest step whose save nobody completes any more; None if there is none, or a later one is complete."""
    paths = _list(directory)
    complete = max(split_steps([path.name for path in paths])[0], default=-1)
    left = [path for path in paths if path.name.startswith(_TEMPORARY) and not _is_held(path)]
    steps = list_steps(path.name.removeprefix(_TEMPORARY) for path in left)
    return max((step for step in steps if step >= complete), default=None)


def find_expired(
    steps: Sequence[int], keep: int, published: int | None = None, damaged: Collection[int] = ()
) -> list[int]:
    """The steps to delete so that `keep` remain; 0 keeps all. `steps` are in the order of `list_steps`.

    What was just `published` always remains, and those that were found to be damaged go first.
    """
    order = sorted(steps, key=lambda step: (step != published, step in damaged))
    return order[keep:] if keep else []


def checksum(path: Path) -> tuple[int, int]:
    """Size in bytes and CRC-32, which detects accidental damage."""
    size, value = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            value = zlib.crc32(chunk, value)
    return size, value


def sync_file(path: Path) -> None:
    """Flush a file that another library has written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal_files(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Flush files, and return their manifest entries."""
    entries = {}
    for path in paths:
        sync_file(path)
        entries[path.name] = list(checksum(path))
    return entries


def publish(temporary: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, and make the checkpoint visible. At no time is there none of this step that `recover` finds.

    Raises OSError, also if the folder was taken away from a writer whose world has ended.
    """
    path = temporary / MANIFEST
    path.write_text(json.dumps(manifest, indent=1))
    sync_file(path)
    (temporary / _LOCK).unlink(missing_ok=True)  # from now on, others adopt it
    sync_file(temporary)
    _reveal(temporary, final, dict(manifest))


def _reveal(temporary: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    try:
        _rename(temporary, final)
    except FileNotFoundError:
        # Another process has looked at the folder meanwhile, and done it.
        with contextlib.suppress(ValueError):
            if read_manifest(final) == manifest:
                return
        raise


def _rename(temporary: Path, final: Path) -> None:
    directory = final.parent
    _mark(directory, list_steps([final.name])[0], [path.name for path in _list(directory)])
    aside = directory / f"{_ASIDE}{final.name}"
    if final.exists() and temporary.exists():  # a restart repeated a step that was saved before
        if aside.exists():
            delete(aside)
        final.replace(aside)
    temporary.replace(final)
    sync_file(directory)
    if aside.exists():
        delete(aside)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest. Raises ValueError with a readable cause if it is missing or damaged."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        for size, value in manifest["files"].values():
            if type(size) is not int or type(value) is not int:
                raise TypeError
    except FileNotFoundError:
        raise ValueError("it has no manifest: it was not finished") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"its manifest cannot be read ({type(error).__name__})") from None
    return manifest


def find_damage(folder: Path, files: Mapping[str, Sequence[int]]) -> str | None:
    """What is wrong with these files; None if they are intact."""
    for name, (size, value) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        found_size, found_value = checksum(path)
        if found_size != size:
            return f"{name} has {found_size} bytes, not {size}"
        if found_value != value:
            return f"{name} is damaged: its checksum is wrong"
    return None


def make_empty(temporary: Path) -> list[str]:
    """The folder of a new save, without the remains of earlier ones, whose names it returns."""
    removed = recover(temporary.parent)[1]
    if temporary.exists():
        delete(temporary)
    (temporary.parent / f"{temporary.name.removeprefix(_TEMPORARY)}.uncertified").unlink(missing_ok=True)
    temporary.mkdir(parents=True)
    return removed


@contextlib.contextmanager
def hold(temporary: Path) -> Iterator[None]:
    """While this process fills a temporary folder, others leave it. Where files cannot be locked, it does nothing."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((temporary / _LOCK).open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open too
        except OSError:
            pass
        yield


@contextlib.contextmanager
def taking_turns(directory: Path) -> Iterator[None]:
    """Wait until no other process is in such a block. Where directories cannot be locked, it does nothing."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _is_held(temporary: Path) -> bool:
    try:
        with (temporary / _LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def delete_expired(
    directory: Path, steps: Sequence[int], keep: int, published: int | None = None, damaged: Collection[int] = ()
) -> None:
    """Delete what `find_expired` names."""
    for step in find_expired(steps, keep, published, damaged):
        delete(directory / folder_name(step))
        (directory / marker_name(step)).unlink(missing_ok=True)


def delete(folder: Path) -> bool:
    """Delete a folder. False if another process has taken or published it first.

    It is renamed before: so a writer that still has it publishes either all of it, or nothing.
    """
    gone = folder.with_name(f"{_DELETED}{uuid.uuid4().hex}")
    try:
        folder.replace(gone)
    except FileNotFoundError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def adopt(directory: Path) -> list[int]:
    """Make visible what lacks only its rename, and return these steps. It disturbs no writer."""
    adopted: list[int] = []
    for mark in (_TEMPORARY, _ASIDE):  # the newer one first
        for path in _list(directory):
            name = path.name.removeprefix(mark)
            if name == path.name or not list_steps([name]) or (directory / name).exists():
                continue
            with contextlib.suppress(ValueError):
                _reveal(path, directory / name, read_manifest(path))
                adopted += list_steps([name])
    return adopted


def recover(directory: Path) -> tuple[list[int], list[str]]:
    """Finish or delete what interrupted saves have left. The steps that are there now, and the names of the others.

    For writers: what a living one fills stays.
    """
    adopted = adopt(directory)
    removed: list[str] = []
    for path in _list(directory):
        name = path.name.removeprefix(_TEMPORARY).removeprefix(_ASIDE)
        if name == path.name or not list_steps([name]) or _is_held(path):
            continue
        if delete(path) and path.name.startswith(_TEMPORARY):
            removed.append(path.name)
    for path in directory.glob(f"{_DELETED}*"):
        shutil.rmtree(path, ignore_errors=True)
    return adopted, removed
