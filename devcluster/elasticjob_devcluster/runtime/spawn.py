"""Forks and executes a container's first process, and returns the error of a failed start to the caller."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from elasticjob_devcluster.runtime import sandbox
from elasticjob_devcluster.system import processes


class StartError(Exception):
    """The process could not be started; the message is like that of a container runtime."""


@dataclass
class Spec:
    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    hostname: str
    scratch: str
    mounts: list[sandbox.Mount] = field(default_factory=list)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Spec:
        return cls(**{**raw, "mounts": [sandbox.Mount(**m) for m in raw.get("mounts", [])]})


def start(spec: Spec, mode: sandbox.Mode, out: int, err: int) -> int:
    """Start the container; return its process ID. Raises StartError if it does not run."""
    return _fork(lambda: enter(spec, mode), spec.argv, spec.env, spec.cwd, out, err)


def start_in(spec: Spec, pid: int, argv: list[str], mode: sandbox.Mode, out: int, err: int) -> int:
    """Start another process in a running container."""
    return _fork(lambda: sandbox.join(pid, mode), argv, spec.env, spec.cwd, out, err)


def enter(spec: Spec, mode: sandbox.Mode) -> None:
    sandbox.enter(mode, spec.mounts, hostname=spec.hostname, scratch=Path(spec.scratch))


def _fork(prepare: Callable[[], None], argv: list[str], env: dict[str, str], cwd: str, out: int, err: int) -> int:
    read, write = os.pipe()  # closed by a successful exec; otherwise it carries the error
    pid = os.fork()
    if pid == 0:
        _become(prepare, argv, env, cwd, out, err, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        message = pipe.read()
    if message:
        os.waitpid(pid, 0)
        raise StartError(message.decode(errors="replace"))
    return pid


def _become(
    prepare: Callable[[], None],
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    out: int,
    err: int,
    report: int,
) -> NoReturn:
    """The child between fork and exec. It never returns to the runtime's event loop."""
    try:
        settle(prepare, cwd, out, err)
        os.execvpe(argv[0], argv, env)  # noqa: S606 - the pod's own command
    except BaseException as error:
        os.write(report, explain(error, argv, cwd).encode())
    os._exit(128)


def settle(prepare: Callable[[], None], cwd: str, out: int, err: int) -> None:
    """Give this process a session, signals, files, namespaces and a folder of its own."""
    os.setsid()
    processes.die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(out, 1)
    os.dup2(err, 2)
    prepare()
    os.chdir(cwd)


def explain(error: BaseException, argv: list[str], cwd: str) -> str:
    """Why a process did not start, in the words of a container runtime."""
    if not isinstance(error, FileNotFoundError):
        return f'exec: "{argv[0]}": {error}'
    if error.filename == cwd:
        return f"working directory {cwd!r}: no such file or directory"
    missing = "no such file or directory" if "/" in argv[0] else "executable file not found in $PATH"
    return f'exec: "{argv[0]}": {missing}'
