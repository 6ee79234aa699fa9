"""Starts and ends processes so that none is ever left behind.

Every process of a devcluster has marks in its environment: its cluster, node and container. Children inherit them, even
if they start a session of their own or outlive their parent, so a mark finds a whole tree where a process group does
not. The kernel kills direct children with their parent; the marks find all others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

MARK_CLUSTER: Final = "ELASTICJOB_DEVCLUSTER"
MARK_NODE: Final = "ELASTICJOB_DEVCLUSTER_NODE"
MARK_CONTAINER: Final = "ELASTICJOB_DEVCLUSTER_CONTAINER"

_PR_SET_PDEATHSIG: Final = 1
libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent's thread ends. Call it in the child, before exec."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a service that dies with the caller, in a new session, with its output appended to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - callers have one thread
        )


def python_argv(module: str, *arguments: str) -> list[str]:
    """Run one of our modules with the caller's interpreter and import path."""
    return [sys.executable, "-m", module, *arguments]


def base_env() -> dict[str, str]:
    """The part of the caller's environment that our services need; nothing else is passed on."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in keep if name in os.environ}


def find_marked(mark: str, value: str) -> list[int]:
    """The processes with this mark, except the caller."""
    needle = f"\0{mark}={value}\0".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:  # noqa: PTH123 - called for every process
                environ = file.read()
        except OSError:
            continue  # it ended, or belongs to another user
        if needle in b"\0" + environ:
            found.append(int(entry.name))
    return found


def find_in_cgroup(name: str) -> list[int]:
    """The processes in a control group with this name; container runtimes create one for each container."""
    needle = f"/{name}\n".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/cgroup", "rb") as file:  # noqa: PTH123
                if needle in file.read():
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def descendants(roots: Iterable[int]) -> set[int]:
    """The processes below `roots`, which also finds those that overwrote their environment."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123
                stat = file.read()
        except OSError:
            continue
        parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    result: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in result:
                result.add(pid)
                todo.append(pid)
    return result


def send(pids: Iterable[int], number: int) -> None:
    """Signal processes; ignores those that have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            stat = file.read()
    except OSError:
        return True
    return stat[stat.rindex(b")") + 2 :][:1] in (b"Z", b"X")


def kill_marked(mark: str, value: str, *, deadline: float = 10.0) -> int:
    """Send SIGKILL to everything with this mark until nothing is left; return how many processes were found."""
    seen: set[int] = set()
    end = time.monotonic() + deadline
    while True:
        alive = [pid for pid in find_marked(mark, value) if not is_zombie(pid)]
        if not alive or time.monotonic() > end:
            return len(seen)
        everyone = set(alive) | descendants(alive)
        everyone.discard(os.getpid())
        seen |= everyone
        send(everyone, signal.SIGKILL)
        time.sleep(0.005)
