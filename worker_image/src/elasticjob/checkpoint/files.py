"""The files of a checkpoint: which are complete, which to keep. It uses neither torch nor collectives.

A checkpoint is a folder `step-00000100`. It is written as `.tmp-step-00000100`: each file is flushed, then the manifest
with the size and checksum of every file is written, and a rename makes the checkpoint visible. A folder with the final
name is therefore complete, unless the disk damaged it later, which the checksums detect.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
STATE = "state.pt"
_NAME = re.compile(r"step-(\d{8,})")
_CHUNK = 1 << 20


def folder_name(step: int) -> str:
    """The folder name of a step's checkpoint; names sort in the order of steps."""
    return f"step-{step:08d}"


def temporary_name(step: int) -> str:
    return f".tmp-{folder_name(step)}"


def list_steps(names: Iterable[str]) -> list[int]:
    """The steps among these names, newest first; those that are not certified come after the others."""
    found = set(names)
    matches = (_NAME.fullmatch(name) for name in found)
    steps = [int(match.group(1)) for match in matches if match]
    return sorted(steps, key=lambda step: (marker_name(step) in found, -step))


def marker_name(step: int) -> str:
    """The name of the file that says that a step's checkpoint is not certified."""
    return f"{folder_name(step)}.uncertified"


def distrust(directory: Path, after: int) -> list[int]:
    """Mark all checkpoints after this step as not certified, also those that are being written; return their steps."""
    names = [path.name.removeprefix(".tmp-") for path in directory.iterdir()] if directory.is_dir() else []
    steps = sorted(step for step in list_steps(names) if step > after)
    for step in steps:
        (directory / marker_name(step)).touch()
    return steps


def find_expired(steps: Sequence[int], keep: int) -> list[int]:
    """The steps to delete so that the first `keep` in the order of `list_steps` remain; 0 keeps all."""
    return list(steps[keep:]) if keep else []


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
    """Write the manifest, and make the checkpoint visible."""
    path = temporary / MANIFEST
    path.write_text(json.dumps(manifest, indent=1))
    sync_file(path)
    sync_file(temporary)
    if final.exists():  # a restart repeated a step that was saved before
        shutil.rmtree(final)
    temporary.replace(final)
    sync_file(final.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest. Raises ValueError with a readable cause if it is missing or damaged."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        manifest["files"].items()
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


def make_empty(temporary: Path) -> None:
    """The folder of a new save, without the remains of earlier ones."""
    remove_unfinished(temporary.parent)
    (temporary.parent / f"{temporary.name.removeprefix('.tmp-')}.uncertified").unlink(missing_ok=True)
    temporary.mkdir(parents=True)


def delete_expired(directory: Path, steps: Sequence[int], keep: int) -> None:
    """Delete all checkpoints of `steps` but the newest `keep`; 0 keeps all."""
    for step in find_expired(steps, keep):
        shutil.rmtree(directory / folder_name(step), ignore_errors=True)
        (directory / marker_name(step)).unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> list[str]:
    """Delete the remains of interrupted saves; return their names."""
    removed = []
    for path in sorted(directory.glob(".tmp-step-*")):
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path.name)
    return removed
