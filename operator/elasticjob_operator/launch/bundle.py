"""The files that travel with a job, read once from this machine, and their digest.

They are the content of one ConfigMap, so they have its limits. A message about something too large names the ways out.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from elasticjob_operator.client.errors import ClientError

MOST_BYTES: Final = 960 * 1024  # a ConfigMap holds 1 MiB
MOST_FILES: Final = 256  # each is named in the template of every pod
MOST_LEVELS: Final = 100  # of its folders
REQUIREMENTS: Final = "requirements.txt"
WAYS_OUT: Final = (
    "leave out what the job does not need (--exclude), build it into the image, clone it with git in an init "
    "container, or mount a PersistentVolumeClaim"
)
_MOST_SEEN: Final = 20_000  # files of a folder that is obviously the wrong one


class CodeError(ClientError):
    """The code cannot travel; the message names the file and the remedy."""


@dataclass(frozen=True)
class File:
    """One file: its path relative to the job's working directory, with slashes."""

    path: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class Bundle:
    """Files in the order of their paths. `requirements` is the path of one of them, or None."""

    files: tuple[File, ...]
    requirements: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(file.content) for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of paths, modes and contents, as 64 hexadecimal digits."""
        found = hashlib.sha256()
        for file in self.files:
            head = f"{file.path}\0{int(file.executable)}\0{len(file.content)}\0"
            found.update(head.encode() + file.content)
        found.update((self.requirements or "").encode())
        return found.hexdigest()

    def has(self, path: str) -> bool:
        return any(file.path == path for file in self.files)

    def with_file(self, file: File) -> Bundle:
        """With this file, in place of another one at its path. Raises CodeError if that is too much."""
        others = [other for other in self.files if other.path != file.path]
        return check(replace(self, files=tuple(sorted((*others, file), key=lambda f: f.path))), "the code")

    def describe(self) -> str:
        """For people: `3 files, 12.1 KiB, sha256:3f9a…`."""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        return f"{files}, {format_size(self.size)}, sha256:{self.digest[:12]}"


def read_code(path: Path, exclude: Sequence[str] = ()) -> Bundle:
    """The bundle of a file, or of a folder with its requirements.txt. Raises CodeError."""
    if path.is_dir():
        return read_folder(path, exclude)
    return read_script(path)


def read_script(path: Path) -> Bundle:
    """The bundle of one file. Raises CodeError, also for a script that imports what lies beside it."""
    file = _read(path, path.name)
    missing = find_local_imports(file.content, path.absolute().parent) if path.suffix == ".py" else []
    if missing:
        raise CodeError(
            f"{path}: imports {', '.join(missing)}, which lies beside it and would stay behind: send the folder "
            f"(--code {path.parent})"
        )
    return check(Bundle((file,)), str(path))


def read_folder(path: Path, exclude: Sequence[str] = ()) -> Bundle:
    """The bundle of a folder. Names with a leading dot, caches and virtual environments stay behind."""
    found: list[tuple[str, Path]] = []
    for place in _walk(path):
        name = place.relative_to(path).as_posix()
        if not is_excluded(name, exclude):
            _refuse_link_out(place, path)
            found.append((name, place))
        if len(found) > _MOST_SEEN:
            raise CodeError(f"{path}: has more than {_MOST_SEEN} files: choose the folder of the code alone")
    sizes = {name: _size(place) for name, place in found}
    _check_sizes(sizes, str(path))
    files = tuple(_read(place, name) for name, place in sorted(found))
    if not files:
        raise CodeError(f"{path}: has no file to send: choose the folder of the code")
    has_requirements = any(file.path == REQUIREMENTS for file in files)
    return check(Bundle(files, REQUIREMENTS if has_requirements else None), str(path))


def check(bundle: Bundle, where: str) -> Bundle:
    """The bundle, if one ConfigMap can hold it. Raises CodeError."""
    _check_sizes({file.path: len(file.content) for file in bundle.files}, where)
    return bundle


def with_requirements(bundle: Bundle, path: Path) -> Bundle:
    """The bundle with this file as its requirements. Raises CodeError."""
    file = _read(path, REQUIREMENTS)
    return replace(bundle.with_file(file), requirements=REQUIREMENTS)


def with_packages(bundle: Bundle, packages: Sequence[str]) -> Bundle:
    """The bundle with these requirements, as pip writes them, in addition to its own."""
    if not packages:
        return bundle
    for package in packages:
        if not isinstance(package, str) or not package.strip() or "\n" in package or package.startswith("-"):
            raise CodeError(f"packages: {package!r} is not a requirement: write it as pip does, as in 'numpy>=2'")
    lines = [*([f"-r {bundle.requirements}"] if bundle.requirements else []), *packages]
    name = "elasticjob-requirements.txt"
    file = File(name, ("\n".join(lines) + "\n").encode())
    return replace(bundle.with_file(file), requirements=name)


def is_excluded(name: str, exclude: Sequence[str]) -> bool:
    """Whether a pattern matches the path, a folder above it, or the name of one of them."""
    parts = name.split("/")
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    patterns = [pattern.strip("/") for pattern in exclude]
    return any(fnmatch.fnmatch(text, pattern) for pattern in patterns for text in (*prefixes, *parts))


def find_local_imports(source: bytes, folder: Path) -> list[str]:
    """Modules beside a script that it imports. Empty if the source is not for this version of Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported(node)}
    local = {n for n in names - sys.stdlib_module_names if _is_module(folder / n)}
    return sorted(local)


def format_size(size: int) -> str:
    return f"{size} bytes" if size < 1024 else f"{size / 1024:.1f} KiB" if size < 2**20 else f"{size / 2**20:.1f} MiB"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _is_module(path: Path) -> bool:
    return path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file()


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise CodeError(f"{error.filename or folder}: cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=fail):
        here = Path(place)
        if len(here.relative_to(folder).parts) > MOST_LEVELS:
            raise CodeError(
                f"{folder}: has folders more than {MOST_LEVELS} levels deep: choose the folder of the code alone"
            )
        folders[:] = sorted(f for f in folders if not _stays_behind(f) and not (here / f / "pyvenv.cfg").exists())
        linked = [f for f in folders if (here / f).is_symlink()]
        if linked:
            raise CodeError(f"{here / linked[0]}: is a link to a folder: put a copy in its place, or --exclude it")
        yield from (here / name for name in sorted(names) if not _stays_behind(name))


def _stays_behind(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".egg-info"))


def _refuse_link_out(place: Path, folder: Path) -> None:
    """A folder of somebody else's may have a link to a secret of this user's."""
    if place.is_symlink() and not place.resolve().is_relative_to(folder.resolve()):
        raise CodeError(f"{place}: is a link to a file outside of the folder: put a copy in its place, or --exclude it")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CodeError(f"{path}: cannot be read: {error.strerror}: mend or --exclude it") from None


def _read(path: Path, name: str) -> File:
    try:
        name.encode()
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise CodeError(f"{path}: is not a regular file: leave it out (--exclude)")
        if path.stat().st_size > MOST_BYTES:
            _check_sizes({name: path.stat().st_size}, str(path))
        return File(name, path.read_bytes(), bool(mode & stat.S_IXUSR))
    except UnicodeEncodeError:
        raise CodeError(f"{name!a}: its name is not UTF-8: rename it") from None
    except OSError as error:
        raise CodeError(f"{path}: cannot be read: {error.strerror}") from None


def _check_sizes(sizes: dict[str, int], where: str) -> None:
    total = sum(sizes.values())
    if total > MOST_BYTES:
        largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:3]
        which = ", ".join(f"{name} {format_size(sizes[name])}" for name in largest)
        raise CodeError(
            f"{where}: has {format_size(total)}, and at most {format_size(MOST_BYTES)} travel with a job (largest: "
            f"{which}): {WAYS_OUT}"
        )
    if len(sizes) > MOST_FILES:
        raise CodeError(f"{where}: has {len(sizes)} files, and at most {MOST_FILES} travel with a job: {WAYS_OUT}")
