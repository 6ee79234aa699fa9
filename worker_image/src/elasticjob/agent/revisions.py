"""Later revisions of the job's code: what is mounted of them, unpacked for workers that start from now on.

The kubelet brings each of them as a ConfigMap, whose index (`revision.json`) names its files, arguments and variables.
A revision is unpacked as soon as it is there, into a folder of its own, so that no world waits for it. Workers then run
that folder in place of the one that the pod was created with.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from elasticjob import env
from elasticjob.launch import preload
from elasticjob.protocol import wire

logger = logging.getLogger("elasticjob")

INDEX: Final = "revision.json"
LOOK_EVERY: Final = 1.0
_SEARCH_PATH: Final = "PYTHONPATH"
PATIENCE: Final = 100.0  # seconds that a pod waits for what its world runs
# The path and no part of another one; after an option of one letter too, such as -I.
_CODE: Final = re.compile(r"(?:(?<![\w.-])|(?<=(?<![\w.-])-[A-Za-z]))" + re.escape(env.CODE_PATH) + r"(?![\w.-])")
# Errors of a file's name, which no other moment changes.
_LASTING: Final = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ}


class RevisionError(Exception):
    """A revision cannot be run. The message says why, and names the remedy."""


class NoRoomError(RevisionError):
    """There is no place for its files now."""


@dataclass(frozen=True)
class File:
    path: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class Revision:
    """What an update has sent. `arguments`: in place of those of the command; None: these stay."""

    digest: str
    files: tuple[File, ...] = ()
    arguments: tuple[str, ...] | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Place:
    """A revision, and the folder with its files."""

    revision: Revision
    folder: Path

    def find_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Those of the update, in this environment. What the launcher sets for each worker wins, as it does over those
        of the container, in whose PYTHONPATH are the runtime and the packages of the pod.
        """
        given = self.revision.variables
        found = {name: self._move(text) for name, text in given if name not in preload.OWN_VARIABLES}
        if _SEARCH_PATH in found and environ.get(_SEARCH_PATH):
            folders = f"{found[_SEARCH_PATH]}{os.pathsep}{self._move(environ[_SEARCH_PATH])}".split(os.pathsep)
            found[_SEARCH_PATH] = os.pathsep.join(dict.fromkeys(folders))
        return found

    def redirect(
        self, command: tuple[str, ...], environ: Mapping[str, str], cwd: str
    ) -> tuple[tuple[str, ...], dict[str, str], str]:
        """The command of a worker, its environment and its working directory, with this revision's code. Pure."""
        first = 2 if command[1:2] == ("-u",) else 0  # after the interpreter, if there is one
        script = first + (2 if command[first : first + 1] == ("-m",) else 1)
        arguments = command[script:] if self.revision.arguments is None else self.revision.arguments
        moved = tuple(self._move(word) for word in (*command[:script], *arguments))
        changed = {name: self._move(value) for name, value in environ.items()}
        return moved, changed | self.find_variables(environ), self._move(cwd)

    def _move(self, text: str) -> str:
        return _CODE.sub(lambda _: str(self.folder), text)


def compute_digest(index: Mapping[str, Any], files: tuple[File, ...]) -> str:
    """As `kubectl elasticjob update` computes it."""
    code = hashlib.sha256()
    for file in files:
        code.update(f"{file.path}\0{int(file.executable)}\0{len(file.content)}\0".encode() + file.content)
    code.update(str(index["requirements"]).encode())
    rest = {"arguments": index["arguments"], "code": code.hexdigest(), "variables": index["variables"]}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read(folder: Path) -> Revision | None:
    """The revision that is mounted here; None if there is none. Raises RevisionError."""
    current = folder / "..data"  # the kubelet replaces it as a whole
    root = current.resolve() if current.is_symlink() else folder
    try:
        index = json.loads((root / INDEX).read_bytes())
        found = [(str(one["path"]), str(one["key"]), one["executable"] is True) for one in index["files"]]
        files = tuple(File(path, (root / Path(key).name).read_bytes(), is_program) for path, key, is_program in found)
        digest, arguments, variables = str(index["digest"]), index["arguments"], index["variables"]
        if compute_digest(index, files) != digest:
            raise RevisionError(f"{folder}: its files are not those of its digest: update the job once more")
        for file in files:
            if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
                raise RevisionError(f"{folder}: {file.path}: leads out of its folder: update the job once more")
        given = None if arguments is None else tuple(str(word) for word in arguments)
        return Revision(digest, files, given, tuple((str(name), str(text)) for name, text in variables.items()))
    except FileNotFoundError:
        return None  # not there yet, or replaced in this moment
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RevisionError(f"{folder}: {INDEX} cannot be read ({error!r}): update the job once more") from None


def unpack(revision: Revision, base: Path) -> Path:
    """The folder below `base` with the files of this revision. Raises RevisionError."""
    folder = base / revision.digest[:16]
    if folder.is_dir():
        return folder
    try:
        fresh = Path(tempfile.mkdtemp(dir=base))
        for file in revision.files:
            place = fresh / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(0o755 if file.executable else 0o644)
        fresh.rename(folder)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        named = f"the new code {revision.digest[:12]}"
        if isinstance(error, ValueError) or error.errno in _LASTING:
            text = f"{named} has a file that can be nowhere ({error})"
            raise RevisionError(f"{text}: rename it, and update the job once more") from None
        text = f"{base}: cannot hold {named} ({error.strerror or error})"
        raise NoRoomError(f"{text}: mount an emptyDir at {base.parent}") from None
    return folder


class Revisions:
    """The revisions that this pod has. Safe from any thread."""

    def __init__(self, mounted: Path = Path(env.UPDATES_PATH)) -> None:
        self._mounted = mounted
        self._lock = threading.Lock()
        self._base: Path | None = None
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._places: dict[Path, Place] = {}  # by what is mounted
        self._told: dict[Path, str] = {}  # what is mounted and finds no room, and how that was told
        self._running: Place | None = None

    @property
    def can_come(self) -> bool:
        """Whether this pod was created with a place for them."""
        return self._mounted.is_dir()

    def start(self, on_change: Callable[[tuple[str, ...]], None]) -> None:
        """Call `on_change` with the digests of those that are here: now, and at each change from another thread."""
        known = self.look()
        on_change(known)
        threading.Thread(target=self._follow, args=(on_change, known), name="elasticjob-code", daemon=True).start()

    def _follow(self, on_change: Callable[[tuple[str, ...]], None], known: tuple[str, ...]) -> None:
        while True:
            time.sleep(LOOK_EVERY)
            found = self.look()
            if found != known:
                known = found
                on_change(found)

    def look(self) -> tuple[str, ...]:
        """The digests of what is here, unpacked."""
        with self._lock:
            for folder in sorted(self._mounted.iterdir()) if self.can_come else []:
                stamp = _stamp(folder / INDEX)
                if stamp == self._stamps.get(folder):
                    continue
                self._stamps[folder] = stamp
                self._places.pop(folder, None)
                try:
                    revision = read(folder)
                    if revision is not None:
                        self._places[folder] = Place(revision, unpack(revision, self._find_base(revision)))
                        self._told.pop(folder, None)
                except NoRoomError as error:
                    del self._stamps[folder]  # there may be some later
                    if str(error) != self._told.get(folder):
                        logger.error("%s", error)  # noqa: TRY400 - it says all
                    self._told[folder] = str(error)
                except RevisionError as error:
                    logger.error("%s", error)  # noqa: TRY400 - it says all
            self._forget()
            return tuple(sorted({place.revision.digest for place in self._places.values()}))

    def enter(self, code: wire.Code | None, patience: float = PATIENCE) -> Place | None:
        """The place from which workers run from now on; None: where the pod has its code. Raises RevisionError."""
        if code is None or not code.digest:
            self._running = None
            return None
        if self._running is not None and self._running.revision.digest == code.digest:
            return self._running
        deadline = time.monotonic() + patience
        while code.digest not in self.look():
            if time.monotonic() >= deadline:
                raise RevisionError(
                    f"code: revision {code.revision} did not reach this pod in {patience:.0f} s: update the job again"
                )
            time.sleep(0.1)
        with self._lock:
            self._running = next(p for p in self._places.values() if p.revision.digest == code.digest)
            return self._running

    def close(self) -> None:
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)

    def _find_base(self, revision: Revision) -> Path:
        if self._base is None:
            try:
                self._base = Path(tempfile.mkdtemp(prefix="elasticjob-code-"))
            except OSError as error:
                text = f"no folder can hold the new code {revision.digest[:12]} ({error.strerror or error})"
                raise NoRoomError(f"{text}: mount an emptyDir at /tmp") from None
        return self._base

    def _forget(self) -> None:
        """Remove what nobody runs and nobody can ask for any more."""
        if self._base is None:
            return
        kept = {place.folder for place in (*self._places.values(), self._running) if place is not None}
        for folder in set(self._base.iterdir()) - kept:
            shutil.rmtree(folder, ignore_errors=True)


def _stamp(file: Path) -> tuple[int, int]:
    """Changes with the file; the kubelet never writes into one that is there."""
    with contextlib.suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - through the links of the kubelet
        return found.st_ino, found.st_mtime_ns
    return 0, 0
