"""Finds or builds the control plane's programs.

The order: `KUBEBUILDER_ASSETS`; `PATH`; our cache; the official release, if it can be reached; Debian's source package,
built once. The cache is verified: a file whose size or time differs from the manifest is hashed, and a wrong hash
invalidates the entry. `ELASTICJOB_DEVCLUSTER_BINARIES` limits the choice to some of `assets,path,cache,release,debian`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elasticjob_devcluster.controlplane import debian, release

SERVERS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_PROGRAMS: Final = ("kubelet", "kube-proxy")  # for nodes that run containers
CHOICES: Final = ("assets", "path", "cache", "release", "debian")
MANIFEST: Final = "manifest.json"


class BinariesUnavailable(Exception):  # noqa: N818 - says what happened
    """The control plane's programs are not available on this machine; the message lists what was tried."""


@dataclass(frozen=True)
class Source:
    """A way to fill a cache entry."""

    key: str
    fill: Callable[[Path, Sequence[str]], None]


def find_or_build(programs: Sequence[str] = SERVERS) -> Path:
    """A directory that contains these programs. May build for some minutes, once per machine.

    Raises BinariesUnavailable.
    """
    choices = read_choices(os.environ.get("ELASTICJOB_DEVCLUSTER_BINARIES", ""))
    tried: list[str] = []
    if (found := _find_installed(programs, choices, tried)) is not None:
        return found
    root = cache_root()
    sources = _sources(choices)
    if "cache" in choices:
        for source in sources:
            if check_entry(root / source.key, programs, say):
                return root / source.key
    for source in sources:
        try:
            return _fill(root, source, programs)
        except (release.Unreachable, debian.BuildFailed) as error:
            tried.append(f"{source.key}: {error}")
    raise BinariesUnavailable(
        "the control plane's programs were not found and could not be made:\n  "
        + "\n  ".join(tried or ["nothing was allowed by ELASTICJOB_DEVCLUSTER_BINARIES"])
        + "\nSet KUBEBUILDER_ASSETS to a directory with "
        + ", ".join(programs)
    )


def read_choices(text: str) -> tuple[str, ...]:
    wanted = tuple(part.strip() for part in text.split(",") if part.strip()) or CHOICES
    if unknown := sorted(set(wanted) - set(CHOICES)):
        raise BinariesUnavailable(
            f"ELASTICJOB_DEVCLUSTER_BINARIES: unknown {unknown[0]!r}, use some of {','.join(CHOICES)}"
        )
    return wanted


def _find_installed(programs: Sequence[str], choices: Sequence[str], tried: list[str]) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if "assets" in choices and assets:
        missing = [p for p in programs if not os.access(Path(assets, p), os.X_OK)]
        if not missing:
            return Path(assets)
        tried.append(f"KUBEBUILDER_ASSETS={assets}: no {', '.join(missing)}")
    if "path" in choices:
        places = {Path(p).parent for name in programs if (p := shutil.which(name))}
        for place in places:
            if all(os.access(place / name, os.X_OK) for name in programs):
                return place
        tried.append("PATH: not all programs in one of its directories")
    return None


def _sources(choices: Sequence[str]) -> list[Source]:
    machine = f"linux-{'arm64' if platform.machine() == 'aarch64' else 'amd64'}"
    sources = []
    if "release" in choices:
        sources.append(Source(f"release-{release.version()}-{machine}", release.fetch))
    if "debian" in choices:
        sources.append(Source(f"debian-{debian.VERSION}-{machine}", debian.build))
    return sources


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "elasticjob" / "binaries"


def _fill(root: Path, source: Source, programs: Sequence[str]) -> Path:
    """Fill a cache entry under a lock in a temporary directory, and move it into place atomically."""
    root.mkdir(parents=True, exist_ok=True)
    entry = root / source.key
    with _lock(root / f"{source.key}.lock"):
        if check_entry(entry, programs, say):  # another process was faster
            return entry
        # Keep existing files: another task may have requested other programs.
        everything = tuple(dict.fromkeys((*_present(entry), *programs)))
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{source.key}-") as aside:
            fresh = Path(aside) / "entry"
            fresh.mkdir()
            source.fill(fresh, everything)
            write_manifest(fresh)
            if entry.exists():
                entry.rename(Path(aside) / "old")
            fresh.rename(entry)
    return entry


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process prepares the control plane's programs: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _present(entry: Path) -> list[str]:
    known = _read_manifest(entry)
    return sorted(known) if known is not None else []


def write_manifest(entry: Path) -> None:
    files = {}
    for path in sorted(entry.iterdir()):
        if path.name != MANIFEST:
            stat = path.stat()
            files[path.name] = {"sha256": sha256(path), "size": stat.st_size, "mtime": stat.st_mtime_ns}
    (entry / MANIFEST).write_text(json.dumps({"files": files}, indent=1))


def _read_manifest(entry: Path) -> Mapping[str, Mapping[str, object]] | None:
    try:
        files = json.loads((entry / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, dict) else None


def check_entry(entry: Path, programs: Sequence[str], report: Callable[[str], None]) -> bool:
    """Whether the entry has these programs, unmodified. Removes a damaged entry, so that it is created again."""
    if not entry.exists():
        return False
    files = _read_manifest(entry)
    if files is None:
        report(f"{entry} has no readable manifest: it is made anew")
        shutil.rmtree(entry, ignore_errors=True)
        return False
    for name, facts in files.items():
        if not _is_unchanged(entry / name, facts):
            report(f"{entry / name} is not what was put there: the cache entry is made anew")
            shutil.rmtree(entry, ignore_errors=True)
            return False
    return all(name in files for name in programs)


def _is_unchanged(path: Path, facts: Mapping[str, object]) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    if stat.st_size != facts.get("size") or not os.access(path, os.X_OK):
        return False
    return stat.st_mtime_ns == facts.get("mtime") or sha256(path) == facts.get("sha256")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(text: str) -> None:
    """Print progress to standard error; standard output belongs to the command."""
    print(f"devcluster: {text}", file=sys.stderr, flush=True)
