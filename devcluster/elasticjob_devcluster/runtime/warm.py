"""Forks the first processes of containers from one that has imported what they import.

A Python program that imports torch takes seconds of processor time to its first line. Where it is a script of this
interpreter, and none of its variables is read by the interpreter or by an import, it can be forked instead: with its
own namespaces, session, files, arguments and environment, also in /proc, and as a child of the runtime, as if it was
executed.

Run as a program, this module is the process that forks. It ends with the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from elasticjob_devcluster.runtime import sandbox, spawn
from elasticjob_devcluster.system import processes

READ_BY_IMPORTS: Final = ("CUDA", "LD_", "LOG", "MKL_", "OMP_", "PYTHON", "TORCH")
_ROOM: Final = "ELASTICJOB_DEVCLUSTER_ROOM"  # what /proc shows as the environment has the length of the first one
_ROOM_BYTES: Final = 96 * 1024
_MAX_ORDER: Final = 1024 * 1024
_PR_SET_CHILD_SUBREAPER: Final = 36


class Forks:
    """The runtime's side. Without modules, and where a fork fails, every container starts cold."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = modules
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._imports: asyncio.Task[None] | None = None

    def suits(self, spec: spawn.Spec) -> bool:
        return bool(self._modules) and find_script(spec.argv, spec.env) is not None

    async def await_imports(self) -> None:
        if self._imports is None:
            self._imports = asyncio.create_task(self._begin())
        await asyncio.shield(self._imports)

    async def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "LANG": "C.UTF-8", _ROOM: "-" * _ROOM_BYTES}
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it has one thread, and may fork
                processes.python_argv(__name__, *self._modules),
                stdin=theirs.fileno(),
                env=env,
                start_new_session=True,
                preexec_fn=processes.die_with_parent,  # noqa: PLW1509
            )
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_recv(ours, 1)
        ours.setblocking(True)
        self._channel = ours

    def start(self, spec: spawn.Spec, mode: sandbox.Mode, out: int, err: int) -> int:
        """Start the container; return its process ID. Raises StartError if it does not run."""
        told = self._order(spec, mode, out, err) if self._channel is not None else ""
        if not told:
            return spawn.start(spec, mode, out, err)
        pid, _, failure = told.partition("\n")
        if failure:
            os.waitpid(int(pid), 0)
            raise spawn.StartError(failure)
        return int(pid)

    def _order(self, spec: spawn.Spec, mode: sandbox.Mode, out: int, err: int) -> str:
        """What is said of the new process: its ID, and why it could not start. Nothing if it cannot be forked."""
        assert self._channel is not None
        read, write = os.pipe()
        # The new process becomes a child of this one when the one between has ended.
        processes.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._channel, [json.dumps([asdict(spec), mode]).encode()], [out, err, write])
            os.close(write)
            with os.fdopen(read, "rb") as pipe:
                return pipe.read().decode(errors="replace")
        finally:
            processes.libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait()


def find_script(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The script of this interpreter that the command runs, if a fork of it would find the same as a new process."""
    if any(name.startswith(READ_BY_IMPORTS) and name != "PYTHONPATH" for name in env):
        return None
    program = shutil.which(argv[0], path=env.get("PATH", ""))
    if program is None:
        return None
    with Path(program).open("rb") as file:
        return program if file.readline().rstrip() == b"#!" + os.fsencode(sys.executable) else None


def serve(channel: socket.socket, runtime: int) -> None:
    """Fork a process for each order until the runtime is gone. In each of them, the script takes over."""
    while True:
        text, files, _, _ = socket.recv_fds(channel, _MAX_ORDER, 3)
        if not text:
            return
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            channel.close()
            _become(text, *files, runtime=runtime)
            return
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _become(order: bytes, out: int, err: int, report: int, *, runtime: int) -> None:
    raw, mode = json.loads(order)
    spec, script = spawn.Spec.parse(raw), ""
    while os.getppid() != runtime:
        time.sleep(0.0005)
    os.write(report, b"%d\n" % os.getpid())
    try:
        script = find_script(spec.argv, spec.env) or ""
        spawn.settle(lambda: spawn.enter(spec, sandbox.Mode(mode)), spec.cwd, out, err)
    except BaseException as error:
        os.write(report, spawn.explain(error, spec.argv, spec.cwd).encode())
        os._exit(128)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as an interpreter begins
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(spec.env)
    show_environment(spec.env)
    for file in (out, err, report):
        os.close(file)
    sys.argv = [script, *spec.argv[1:]]
    sys.path[:1] = [str(Path(script).parent), *filter(None, spec.env.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_path(script, run_name="__main__")


def show_environment(env: Mapping[str, str]) -> None:
    """Let /proc show these variables as those of this process: by them, whatever a container has started is found."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    marks = {name: value for name, value in env.items() if name.startswith(processes.MARK_CLUSTER)}
    text = b"".join(os.fsencode(f"{name}={value}\0") for name, value in {**marks, **env}.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def main() -> None:
    runtime = os.getppid()
    channel = socket.socket(fileno=os.dup(0))
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    channel.sendall(b"r")
    serve(channel, runtime)


if __name__ == "__main__":
    main()
