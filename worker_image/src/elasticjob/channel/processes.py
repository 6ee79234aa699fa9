"""The processes of a pod: which of them a signal is for, and which are left of an old world.

A worker leads a session. What it starts may leave that session, and becomes the agent's child when its own parent has
ended, because the agent adopts orphans. So everything that a worker has ever started is below the worker or below the
agent. The agent's other children are its standby and what was there before the first worker; those are not touched, nor
are processes that somebody else starts in the container (`kubectl exec`): they do not come from a worker.
`read_tree` reads `/proc`; the rest is pure.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticjob import env

PROC = Path("/proc")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox"})
# Compilers and what they start, by the names that /proc has for them, of which it keeps 15 characters.
_COMPILERS = re.compile(
    r"cc1(plus|obj)?|as|collect2|lto1|lto-wrapper|ld([.-]\w+)?|ld\.lld-\d+|lld(-\d+)?"
    r"|nvcc|cudafe\+\+|cicc|ptxas|nvlink|fatbinary|hipcc|icp?x|(\S*-)?(g\+\+|gcc|c\+\+|cc|clang(\+\+)?)(-[\d.]+)?|(x86_64|aarch64)-linux\S*"
)


@dataclass(frozen=True)
class Process:
    """One process at one moment. It has not ended."""

    pid: int
    parent: int
    session: int
    name: str = ""
    began: int = 0  # in ticks since the machine started
    caught: int = 0  # a bit for each signal for which it has a handler
    image: int = 0  # where its environment lies: a fork has this in common with its parent, unlike an exec; 0: unknown
    channel: str = ""  # the control channel in the environment with which it was started

    def catches(self, number: signal.Signals) -> bool:
        return bool(self.caught >> (number - 1) & 1)


Tree = Mapping[int, Process]


def find_receivers(tree: Tree, worker: int, number: signal.Signals) -> list[int]:
    """The processes that are meant by a signal to a worker: the worker alone, which needs what it has started.

    A shell that has no handler would end and leave the script behind, so it is sent to those that the shell has started
    and that have one.
    """
    found = _find_handlers(tree, worker, number)
    return found or [worker, *(pid for pid in _find_below(tree, worker) if _is_shell(tree.get(worker)))]


def _find_handlers(tree: Tree, pid: int, number: signal.Signals) -> list[int]:
    process = tree.get(pid)
    if process is None or process.catches(number) or not _is_shell(process):
        return [pid] if process is not None and process.catches(number) else []
    children = (one.pid for one in tree.values() if one.parent == pid)
    return [receiver for child in children for receiver in _find_handlers(tree, child, number)]


def _is_shell(process: Process | None) -> bool:
    return process is not None and process.name in _SHELLS


def find_leftovers(tree: Tree, agent: int, keep: Collection[int], began: int, channel: str) -> list[Process]:
    """What ended workers have left behind: their orphans, and what is below those.

    `keep`: children of the agent that stay, each with its session. `began`: when the first worker was started.
    `channel`: the agent's, which everything that workers execute has in its environment.
    """
    own = tree[agent]
    roots = (
        one
        for one in tree.values()
        if one.parent == agent
        and one.pid not in keep
        and one.session not in (own.session, *keep)
        and one.began >= began
        and (one.channel == channel or one.image == own.image != 0)
    )
    return [tree[pid] for root in roots for pid in (root.pid, *_find_below(tree, root.pid))]


def find_writing(left: Iterable[Process]) -> list[Process]:
    """The compilers among them, with what is below those: what one writes is whole only when it ends by itself."""
    tree = {one.pid: one for one in left}
    roots = [one.pid for one in tree.values() if _COMPILERS.fullmatch(one.name)]
    found = dict.fromkeys(pid for root in roots for pid in (root, *_find_below(tree, root)))
    return [tree[pid] for pid in found]


def _find_below(tree: Tree, pid: int) -> list[int]:
    children = [one.pid for one in tree.values() if one.parent == pid]
    return [found for child in children for found in (child, *_find_below(tree, child))]


def read_tree(root: int, proc: Path = PROC) -> dict[int, Process]:
    """This process and everything below it."""
    found: dict[int, Process] = {}
    pids = [root]
    while pids:
        pid = pids.pop()
        if pid in found or (process := read(pid, proc)) is None:
            continue
        found[pid] = process
        pids += [int(child) for file in proc.glob(f"{pid}/task/*/children") for child in _read(file).split()]
    return found


def read(pid: int, proc: Path = PROC) -> Process | None:
    """This process; None if it has ended."""
    folder = proc / str(pid)
    head, _, rest = _read(folder / "stat").rpartition(")")
    fields = rest.split()
    if not fields or fields[0] in "ZX":
        return None
    status = dict(line.partition(":")[::2] for line in _read(folder / "status").splitlines())
    environ = dict(line.partition("=")[::2] for line in _read(folder / "environ").split("\0"))
    return Process(
        pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        name=head.partition("(")[2],
        began=int(fields[19]),
        caught=int(status.get("SigCgt", "0").strip() or "0", 16),
        image=int(fields[47]) if len(fields) > 47 else 0,
        channel=environ.get(env.CONTROL, ""),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended, or the kernel does not say
        return ""
