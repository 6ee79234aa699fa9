"""A container's view of the file system, without changes to the host's.

With a mount namespace, volumes appear at the pod's mount paths, and a mount point that the host lacks is created in a
private copy of its parent directory (a small tmpfs whose entries are bind mounts of the originals). Without one (no
root, no user namespaces) nothing can be mounted; then the agent rewrites paths in the command and the environment
instead, see `rewrite`.

Everything here runs in the child between fork and exec, in a process with one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWUSER: Final = 0x10000000
MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_MOVE: Final = 8192
MS_REC: Final = 16384
MS_UNBINDABLE: Final = 1 << 17
MS_PRIVATE: Final = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


class Mode(StrEnum):
    """The isolation of containers that this machine supports."""

    ROOT = "mount-namespace"
    USER = "user-namespace"
    REWRITE = "rewrite"


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


def probe() -> Mode:
    """Test what this machine allows, in children that exit at once."""
    with tempfile.TemporaryDirectory(prefix="elasticjob-probe-") as directory:
        for mode in (Mode.ROOT, Mode.USER):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    target = f"{directory}-target/a"  # invisible on the host
                    enter(mode, [Mount("/etc", target)], hostname="probe", scratch=Path(directory))
                    code = 0 if Path(target, "passwd").exists() else 1
                except OSError:
                    code = 1
                finally:
                    os._exit(code)
            if os.waitpid(pid, 0)[1] == 0:
                return mode
    return Mode.REWRITE


def enter(mode: Mode, mounts: Sequence[Mount], *, hostname: str, scratch: Path) -> None:
    """Move this process into its own namespaces and mount everything. `scratch` is an empty private directory."""
    if mode is Mode.REWRITE:
        return
    if mode is Mode.USER:
        _enter_user_namespace()
    else:
        _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    _mount("none", "/", MS_REC | MS_PRIVATE)
    encoded = hostname.encode()
    _check(_libc.sethostname(encoded, len(encoded)), "sethostname")
    private: set[int] = set()  # devices of the copies that only this process sees
    for mount in sorted(mounts, key=lambda m: m.target.count("/")):
        _place(mount, private, scratch)


def join(pid: int, mode: Mode) -> None:
    """Enter the namespaces of a running container, for probes and hooks."""
    if mode is Mode.REWRITE:
        return
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    kinds = ("user", "mnt", "uts") if mode is Mode.USER else ("mnt", "uts")
    handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for handle in handles:
        _check(_libc.setns(handle, 0), "setns")
    os.fchdir(root)
    os.chroot(".")


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _place(mount: Mount, private: set[int], scratch: Path) -> None:
    target = os.path.realpath(mount.target)
    if not os.path.lexists(target):
        _make_mount_point(target, Path(mount.source).is_dir(), private, scratch)
    _mount(mount.source, target, MS_BIND | MS_REC)
    if mount.read_only:
        with contextlib.suppress(OSError):  # a user namespace may not change the flags of the host's mounts
            _mount("none", target, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _make_mount_point(target: str, directory: bool, private: set[int], scratch: Path) -> None:
    """Make `target` exist, for this process only."""
    parent = Path(target).parent
    existing = next(p for p in (parent, *parent.parents) if p.is_dir())
    if existing.stat().st_dev not in private:
        private.add(_copy(existing, scratch))
    if directory:
        Path(target).mkdir(parents=True)
    else:
        parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()


def _copy(directory: Path, scratch: Path) -> int:
    """Cover `directory` with a tmpfs that shows the same entries; return its device number."""
    _mount("tmpfs", str(scratch), 0, kind="tmpfs", data=f"mode={stat.S_IMODE(directory.stat().st_mode):o}")
    _mount("none", str(scratch), MS_UNBINDABLE)  # the copy must not contain itself
    for entry in os.scandir(directory):
        place = scratch / entry.name
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if entry.is_symlink():
                place.symlink_to(Path(entry.path).readlink())
                continue
            if entry.is_dir():
                place.mkdir()
            else:
                place.touch()
            if entry.path != str(scratch):
                _mount(entry.path, str(place), MS_BIND | MS_REC)
    _mount("none", str(scratch), MS_PRIVATE)
    if directory == Path("/"):
        os.chdir(scratch)
        os.chroot(".")
    else:
        _mount(str(scratch), str(directory), MS_MOVE)
    return directory.stat().st_dev


def _mount(source: str, target: str, flags: int, *, kind: str | None = None, data: str | None = None) -> None:
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
