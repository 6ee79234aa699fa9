"""Starts agents of local pods, ranks of small worlds and operators from a process that has imported what they import.

A new interpreter takes two to three seconds of processor time to import torch, one to two to import the operator, and
most tests start several. They are forked instead: each as a session of its own, with its own files, folder, arguments
and environment, as if it was executed. Processes with variables that are read by an import start a new interpreter.

Run as a program, this module is that process. It ends when its channel is closed, and its processes with it: nothing
outlives the tests, even if they are killed.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

Imports = Literal["agent", "rank", "operator"]

_READ_BY_IMPORTS = ("TORCH", "PYTHON", "LOG", "OMP_", "MKL_", "CUDA", "LD_", "PATH")
_MAX_ORDER = 1024 * 1024


class WarmProcess:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        with self._reading:
            if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
                self.returncode = int(self._ended.recv(32) or -signal.SIGKILL)
                self._ended.close()
            return self.returncode


class WarmStart:
    """A process that forks others; there is one of each kind for all tests of a process of pytest."""

    def __init__(self, imports: Imports, header: Path | None = None) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, str(Path(__file__)), str(theirs.fileno()), imports]
        command += [] if header is None else [str(header)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTICJOB_"))}
        with theirs:
            self._process = subprocess.Popen(
                command, env=env | {"OMP_NUM_THREADS": "1"}, pass_fds=[theirs.fileno()], start_new_session=True
            )
        atexit.register(self.close)

    def start(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, output: IO[bytes], errors: IO[bytes]
    ) -> WarmProcess:
        """Start a Python script with its arguments."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = json.dumps({"command": list(command), "env": dict(env), "cwd": str(cwd)}).encode()
        with theirs:
            socket.send_fds(self._channel, [order], [output.fileno(), errors.fileno(), theirs.fileno()])
        return WarmProcess(int(ours.recv(32)), ours)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(30)


def is_possible(env: Mapping[str, str | None]) -> bool:
    """Whether a process with these variables of its own may be forked: no import reads them.

    Never where coverage is measured, which begins with an interpreter.
    """
    others = [name for name in env if name != "PYTHONPATH"]  # which is taken into account
    return "COVERAGE_PROCESS_START" not in os.environ and not any(n.startswith(_READ_BY_IMPORTS) for n in others)


_shared: dict[tuple[Imports, Path | None], WarmStart] = {}
_sharing = threading.Lock()


def shared(imports: Imports = "agent", header: Path | None = None) -> WarmStart:
    """The one of this process, and of those that it has forked since. `header`: a program that it has run first."""
    with _sharing:
        if (imports, header) not in _shared:
            _shared[imports, header] = WarmStart(imports, header)
        return _shared[imports, header]


def import_agent() -> None:
    from elasticjob import launcher  # noqa: F401 - what an agent imports
    from elasticjob.torchcompat import forking

    forking.import_compiler()  # as its standby does


def import_rank() -> None:
    from elasticjob.torchcompat import forking

    forking.import_compiler()  # as its standby did
    for module in ("elasticjob.sessions.session", "torch.distributed.fsdp", "torch.utils.data"):
        importlib.import_module(module)  # as most scripts do, and their standby for them


def import_operator() -> None:
    import elasticjob_operator.__main__  # noqa: F401 - what it is


IMPORTS: dict[str, Callable[[], None]] = {"agent": import_agent, "rank": import_rank, "operator": import_operator}


def serve(channel: socket.socket) -> None:
    """Fork a process for each order until the channel is closed. In each of them, the script takes over."""
    from elasticjob.launch.process import die_with_parent

    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, socket.socket]] = {}  # by the file that becomes readable when the process ends
    while True:
        for file in select.select([channel.fileno(), *running], [], [])[0]:
            if file in running:
                pid, answer = running.pop(file)
                os.close(file)
                answer.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answer.close()
                continue
            text, (output, errors, answer_file) = _receive(channel)
            if not text:
                return
            answer = socket.socket(fileno=answer_file)
            server, pid = os.getpid(), os.fork()
            if not pid:
                die_with_parent(server)
                for inherited in (channel, answer, *(other for _, other in running.values())):
                    inherited.close()
                for inherited_file in running:
                    os.close(inherited_file)
                _become(json.loads(text), output, errors)
            os.close(output)
            os.close(errors)
            answer.sendall(b"%d" % pid)
            running[os.pidfd_open(pid)] = pid, answer


def _receive(channel: socket.socket) -> tuple[bytes, array.array[int]]:
    files = array.array("i", [-1, -1, -1])
    text, ancillary, _, _ = channel.recvmsg(_MAX_ORDER, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, data in ancillary:
        files = array.array("i", data)
    return text, files


def _become(order: dict[str, object], output: int, errors: int) -> None:
    """Run the script in this process, as its main module, and end with its exit code."""
    command, env = order["command"], order["env"]
    assert isinstance(command, list)
    assert isinstance(env, dict)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, standard in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(given, standard)
        os.close(given)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(order["cwd"]))
    tempfile.tempdir = None  # which an import has asked for
    sys.argv = command
    places = [str(Path(command[0]).parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:1] = dict.fromkeys(places)
    sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]
    runpy.run_path(command[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    IMPORTS[sys.argv[2]]()
    for program in sys.argv[3:]:
        runpy.run_path(program)
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        serve(orders)
