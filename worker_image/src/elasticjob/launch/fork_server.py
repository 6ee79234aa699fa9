"""The agent's side of warm start: workers are forked from a standby, a child of the agent with torch imported.

No worker, not even the first one, pays for `import torch`: the agent has imported it already.
Linux only; ELASTICJOB_WARM_START=0 turns it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elasticjob import env
from elasticjob.channel import processes
from elasticjob.launch import ahead, preload, process, standby

logger = logging.getLogger("elasticjob")

ANSWER_SECONDS = 60.0 + 2 * ahead.IMPORT_SECONDS  # an import of torch on a busy machine, then those of the script
_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 0.5  # for a leftover process to end
_COMPILE_SECONDS = 10.0  # for compilers among them
_KILLS = 3
_MOST_NAMES = 8


# What to run instead of a command with an environment, and where; None: in this directory.
Redirect = Callable[[tuple[str, ...], Mapping[str, str]], tuple[tuple[str, ...], Mapping[str, str], str | None]]
# The files that a worker gets, given its environment and those that it would have.
Tap = Callable[[Mapping[str, str], Any, Any], contextlib.AbstractContextManager[tuple[Any, Any]]]


class Process(Protocol):
    """The interface that torch's agent needs of a worker process; `subprocess.Popen` satisfies it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Child:
    """A child of this process that another process forked. Exit codes are those of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()  # torch's loop and the agent's own thread both poll

    def poll(self) -> int | None:
        """The exit code, or None while the process runs. Safe from any thread."""
        with self._waiting:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                process.await_readable(ended, timeout)
            finally:
                os.close(ended)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """Starts the workers of one agent. Call all methods in the main thread, which is the parent of the workers.

    Call `fork` before the agent starts threads. Without `fork`, every worker starts cold.
    """

    def __init__(self) -> None:
        self._standby: Child | subprocess.Popen[bytes] | None = None
        self._arguments: tuple[str, ...] = ()  # those of torchrun
        self._variables: dict[str, str] = {}  # with which the standby has made its imports ...
        self._read: frozenset[str] | None = None  # ... and which of them it has asked for; None: it has not said it yet
        self._channel: socket.socket | None = None
        self._workers: dict[int, Process] = {}
        self._began: int | None = None  # when the first worker was started, in ticks since the machine started
        self._has_imported = False
        self._adopts = False  # this process is a subreaper: orphans of our workers become its children

    @property
    def is_forked(self) -> bool:
        return self._standby is not None

    def fork(self, arguments: Sequence[str] = (), inherited: Sequence[int] = ()) -> None:
        """Fork the standby. In the standby and in its workers, this call does not return.

        The standby imports what the script in torchrun's `arguments` imports. It closes the files that this process
        has inherited: a new interpreter would not have them.
        """
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            return  # not a subreaper: the workers could not become children of this process
        self._adopts = True
        if options := process.find_options(sys.orig_argv):
            text = "Workers start cold: the launcher's interpreter was started with %s, and theirs is not."
            logger.warning(text, " ".join(options))
            return
        process.open_standard_files()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it was closed
                stream.flush()
        self._arguments = tuple(arguments)
        self._channel, theirs = socket.socketpair()
        agent = os.getpid()
        pid = os.fork()
        if not pid:
            self._channel.close()
            for number in inherited:
                os.close(number)
            os.setsid()
            standby.serve(theirs, agent, arguments)
        theirs.close()
        self._standby = Child(pid)

    def import_with(self, variables: Mapping[str, str], code: Path | None = None) -> None:
        """Let workers start from a process that had these variables, besides those of this one, when it made its
        imports. If they matter there, a new standby makes them again; the first worker waits for it.

        `code`: a folder whose modules the workers import themselves, like those that the job was sent with.
        """
        if self._channel is None or not self._are_stale(variables):
            return
        self.close()
        self._variables, self._has_imported, self._read = dict(variables), False, None
        ours, theirs = socket.socketpair()
        own = "" if code is None else str(code)
        command = (sys.executable, "-u", "-m", standby.__name__, str(theirs.fileno()), own, *self._arguments)
        environ, files = {**os.environ, **variables}, [theirs.fileno()]
        with theirs:
            try:
                self._standby = subprocess.Popen(command, env=environ, pass_fds=files, start_new_session=True)
            except OSError as error:
                ours.close()
                logger.warning("No standby can be started (%s); from now on workers start cold.", error)
                return
        self._channel = ours

    def _are_stale(self, variables: Mapping[str, str]) -> bool:
        """Whether the standby has made its imports with other values of these."""
        if variables == self._variables:
            return False
        try:
            if self._read is None and self._channel is not None:
                self._channel.settimeout(ahead.IMPORT_SECONDS)
                self._read = frozenset(json.loads(self._channel.makefile("rb").readline()))
                self._channel.settimeout(None)
                self._has_imported = True
        except (OSError, ValueError):
            return True  # it has ended, or imports for ever
        return bool(preload.find_stale(self._variables, variables, self._read or (), os.environ))

    def await_imports(self) -> None:
        """Wait until the standby has finished its imports; a worker ordered earlier would wait for them."""
        if self._channel is not None and not self._has_imported:
            self._has_imported = process.await_readable(self._channel.fileno(), ahead.IMPORT_SECONDS)

    def start(
        self, command: tuple[str, ...], env: Mapping[str, str], stdout: Any, stderr: Any, cwd: str | None = None
    ) -> Process:
        """Start a worker: from the standby; else cold but with the same behaviour; else as the plain command."""
        worker: Process | None = None
        if can_warm(command):
            worker = self._start_warm(command[2:], env, stdout, stderr, cwd)
            command = (*command[:2], "-m", "elasticjob.launch.standby", "run", *command[2:])
        if worker is None:
            worker = subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr, start_new_session=True, cwd=cwd)
        self._workers[worker.pid] = worker
        if self._began is None and (seen := processes.read(worker.pid)) is not None:
            self._began = seen.began
        return worker

    def _start_warm(
        self, argv: tuple[str, ...], env: Mapping[str, str], stdout: Any, stderr: Any, cwd: str | None
    ) -> Child | None:
        if self._channel is None:
            return None
        ours, theirs = socket.socketpair()
        text = json.dumps({"argv": argv, "env": dict(env), "cwd": cwd}).encode() + b"\n"
        files = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno(), theirs.fileno()]
        with ours:
            try:
                with theirs:
                    sent = socket.send_fds(self._channel, [text], files)
                    self._channel.sendall(text[sent:])
                ours.settimeout(ANSWER_SECONDS)
                told = ours.makefile("rb").readline()
                if not told:
                    raise ProcessLookupError("the process has ended before it said which one it is")
                pid = int(told)
                ours.sendall(standby.GO)
            except (OSError, ValueError) as error:
                logger.warning("The standby failed to start a worker (%s); from now on workers start cold.", error)
                self.close()
                return None
        return Child(pid)

    def reap(self) -> None:
        """Reap orphans that became children of this process, such as the data loaders of a killed worker."""
        if not self._adopts:
            return
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                pid = ended.si_pid
                known = self._workers.pop(pid, None)
                if self._standby is not None and pid == self._standby.pid:
                    known = self._standby
                if known is None or known.poll() is None:
                    os.waitpid(pid, 0)

    def end_leftovers(self) -> None:
        """End what the last workers have left behind, once all of them have ended.

        It would hold the ports, locks and devices that the next ones need. A compiler may end what it writes: a linker
        that is ended leaves a part of a library, which torch takes for whole as soon as it is there.
        """
        if not self._adopts or self._began is None or any(worker.poll() is None for worker in self._workers.values()):
            return
        numbers = (signal.SIGTERM, *(signal.SIGKILL,) * _KILLS)  # something new may have been started meanwhile
        told, patience = False, time.monotonic() + _COMPILE_SECONDS
        for number in numbers:
            self.reap()
            left = self._find_leftovers(self._began)
            if not left:
                return
            if not told:
                names = ", ".join(f"{one.name} ({one.pid})" for one in left[:_MOST_NAMES])
                more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
                logger.warning("Ending processes that the last workers have left behind: %s%s", names, more)
                told = True
            writing = {one.pid for one in processes.find_writing(left)} if time.monotonic() < patience else set()
            ended = [one.pid for one in left if one.pid not in writing]
            for pid in ended:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            for pids, until in ((ended, time.monotonic() + _END_SECONDS), (writing, patience)):
                for pid in pids:
                    process.await_end(pid, max(0.0, until - time.monotonic()))
        self.reap()

    def _find_leftovers(self, began: int) -> list[processes.Process]:
        keep = () if self._standby is None else (self._standby.pid,)
        tree = processes.read_tree(os.getpid())
        return processes.find_leftovers(tree, os.getpid(), keep, began, os.environ.get(env.CONTROL, ""))

    def disown(self) -> None:
        """Stop starting workers, and adopt no more orphans: `reap` leaves workers that torch starts alone."""
        self.close()
        if self._adopts:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            self._adopts = False

    def close(self) -> None:
        """End the standby. Running workers continue."""
        if self._standby is not None:  # before it notices the closed channel
            self._standby.kill()
            self._standby.wait()
        if self._channel is not None:
            self._channel.close()
        self._channel = self._standby = None


def can_warm(command: tuple[str, ...]) -> bool:
    """Whether this command runs a script or module with the interpreter of this process."""
    return len(command) >= 3 and command[:2] == (sys.executable, "-u")


def write_as_given(
    environ: Mapping[str, str], stdout: Any, stderr: Any
) -> contextlib.AbstractContextManager[tuple[Any, Any]]:
    return contextlib.nullcontext((stdout, stderr))


def run_as_given(
    command: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str], str | None]:
    return command, environ, None


def serve_torch(
    server: ForkServer,
    on_start: Callable[[], None],
    tap: Tap = write_as_given,
    redirect: Redirect = run_as_given,
) -> bool:
    """Make torch's agent start its worker processes from the fork server, if this version of torch allows it.

    `on_start` is called before each start, which may take a while; `tap` says what the worker writes to, `redirect`
    what it runs. Returns whether it does.
    """
    # Imported here: this module is loaded before torch is.
    from elasticjob.torchcompat import workers

    def start(command: tuple[str, ...], env: Mapping[str, str], stdout: Any, stderr: Any) -> Process:
        on_start()
        words, variables, cwd = redirect(command, env)
        with tap(variables, stdout, stderr) as (out, err):
            return server.start(words, variables, out, err, cwd)

    if not workers.replace_start(start):
        logger.warning("This version of torch does not allow a warm start; workers start cold.")
        server.disown()
        return False
    return True


def is_wanted(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether to use a warm start, judged by torchrun's command line (not parsed yet) and the environment."""
    options = [argument.replace("_", "-") for argument in arguments if argument.startswith("--")]
    plain = any(option in ("--standalone", "--no-python", "--help") for option in options) or "-h" in arguments[:1]
    on = environ.get("ELASTICJOB_WARM_START", "1") not in ("0", "false", "no") and sys.platform == "linux"
    return on and env.has_hub(environ) and not plain and not environ.get("PET_NO_PYTHON")
