"""A process that has imported torch, and forks a worker for every order of the agent.

A worker starts in hundredths of a second and shares the memory of torch's code with its siblings. It then runs the
user's script as a fresh interpreter would: same arguments, environment and output files, its own process session, the
same exit code. It is a child of the agent, not of the standby, and dies with the agent. It writes an uncaught exception
to torch's error file.
`python -u -m elasticjob.launch.standby run …` runs a script with the same behaviour, without a fork.
Import no module here that needs torch: torch must be imported at a chosen time only.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import io
import json
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from elasticjob.channel import control
from elasticjob.launch import ahead, ending, frameworks, main_module, preload, process
from elasticjob.torchcompat import forking, threads

_MAX_ORDER = 4 * 1024 * 1024
GO = b"g"  # to a worker: start the script
READY = b"\n"  # to the agent: all imports are done; before it, the variables that they have read


@dataclass
class Order:
    """A worker to start: arguments, environment, the file descriptors of its output and of its answer, and where."""

    argv: list[str]
    env: dict[str, str]
    stdout: int
    stderr: int
    answer: int
    cwd: str | None = None


def main() -> None:
    if sys.argv[1] == "run":
        process.die_with_parent(os.getppid())
        main_module.leave_path()
        become(sys.argv[2:])
    channel, *rest = sys.argv[1:]
    serve(socket.socket(fileno=int(channel)), os.getppid(), rest[1:], os.getpid(), rest[0] if rest else "")


def serve(
    channel: socket.socket, agent: int, arguments: Sequence[str] = (), first: int | None = None, code: str = ""
) -> NoReturn:
    """Fork a worker for every order until the agent is gone. In each worker, the user's script takes over.

    `arguments` are those of torchrun: the standby imports what the script that they name imports. `first`: the process
    with whose start the wait for workers began; by default the agent. `code`: a folder of an update, if there is one:
    what lies in it is left to the workers.
    """
    first = agent if first is None else first
    process.die_with_parent(agent)
    process.pause_collection()
    main_module.leave_path()
    import torch.distributed  # noqa: F401 - the import that workers are spared

    with_torch = process.age(first)
    _import_what_optimizers_need()
    with_compiler = process.age(first)
    process.freeze()
    before: dict[str, str] = {}
    if arguments and preload.is_on(os.environ):
        before = dict(os.environ)
        ahead.import_ahead(arguments, code)
    told = describe_start(with_torch, with_compiler, process.age(first))
    with contextlib.suppress(OSError):  # the agent has exited meanwhile, and has logged why
        channel.sendall(json.dumps(sorted(preload.read_names)).encode() + READY)
        print(f"elasticjob: {told}", file=sys.stderr, flush=True)
    while (order := _receive(channel)) is not None:
        if _fork_child_of(agent):
            channel.close()
            if forking.has_lost_devices():
                os._exit(1)  # without an answer, the agent starts its workers cold
            if before:
                order.env = preload.merge_environment(before, os.environ, order.env)
            _take_over(order)
            become(order.argv)
        for file in (order.stdout, order.stderr, order.answer):
            os.close(file)
    os._exit(0)


def describe_start(torch: float, compiler: float, script: float) -> str:
    """Where the time went, given the age of the pod's first process after each of these imports, in seconds."""
    return (
        f"Workers can start after {script:.2f} s: torch and the agent {torch:.2f} s, what optimizers need "
        f"{compiler - torch:.2f} s, the script's imports {script - compiler:.2f} s."
    )


def _import_what_optimizers_need() -> None:
    """Import torch's compiler, which the first optimizer of a process does anyway: here once for all workers.

    Also if a worker is ordered already: it would import the same, as would each one after it.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
        "1"  # looking for devices must not initialize CUDA, which does not survive a fork
    )
    forking.import_compiler()
    tempfile.tempdir = None  # the compiler has asked for it; a script may name another one in TMPDIR before it asks


def _receive(channel: socket.socket) -> Order | None:
    """The next order; None when the agent has closed its end."""
    space = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    text, files = b"", array.array("i")
    while not text.endswith(b"\n"):
        try:
            part, ancillary, _, _ = channel.recvmsg(_MAX_ORDER, space)
        except ConnectionError:  # the agent closed its end before it read READY
            return None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
        if not part:
            return None
        text += part
    order = json.loads(text)
    stdout, stderr, answer = files
    return Order(order["argv"], order["env"], stdout, stderr, answer, order.get("cwd"))


def _fork_child_of(agent: int) -> bool:
    """Fork a process that the agent, a subreaper, adopts. Returns True in that process, False in the standby."""
    try:
        between = os.fork()
    except OSError as error:  # the agent notices the missing answer
        print(f"elasticjob: no worker can be forked: {error}", file=sys.stderr, flush=True)
        return False
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)  # no process available: the agent notices the missing answer
    os.setsid()
    while os.getppid() == between:
        time.sleep(0.0005)
    process.die_with_parent(agent)
    return True


def _take_over(order: Order) -> None:
    """Set up this process like a fresh interpreter with these files and environment, then wait for GO."""
    for given, standard in ((order.stdout, 1), (order.stderr, 2)):
        os.dup2(given, standard)
        os.close(given)
    _open_streams()
    threads = order.env.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and threads != os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(int(threads))  # torch read the variable when it was imported
    had = main_module.find_search_path(os.environ)
    os.environ.clear()
    os.environ.update(order.env)
    if order.cwd is not None:
        os.chdir(order.cwd)
    main_module.change_search_path(had, main_module.find_search_path(os.environ))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # otherwise all workers would draw the same numbers
    frameworks.mend_ranks()
    process.resume_collection()
    atexit.register(forking.thaw_what_is_counted)
    with socket.socket(fileno=order.answer) as answer:
        if not _is_wanted(answer):
            os._exit(0)


def _is_wanted(answer: socket.socket) -> bool:
    """Tell the agent which process this is, and whether it still waits for it."""
    try:
        answer.sendall(b"%d\n" % os.getpid())
        return answer.recv(1) == GO
    except OSError:
        return False


def _open_streams() -> None:
    """Open sys.stdin, stdout and stderr as `python -u` does, with the encoding that variables and locale set."""
    known = [one for one in (sys.__stdin__, sys.__stdout__) if one is not None]  # None where the launcher has none
    encoding, errors = (known[0].encoding, known[0].errors) if known else ("utf-8", "strict")
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        file: Any = io.FileIO(number, mode, closefd=False)
        file.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            io.BufferedReader(file) if mode == "r" else file,
            encoding=encoding,
            errors="backslashreplace" if name == "stderr" else errors,
            newline=None if mode == "r" else "\n",
            write_through=True,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(argv: list[str]) -> NoReturn:
    """Run a script or `-m module` as `__main__`, as the interpreter would, and exit with its code."""
    control.connect()  # so that a hang is noticed and has stacks, whatever the script uses
    try:
        main_module.run(argv)
    except SystemExit as error:
        threads.note_end(error)
        ending.note(error)
        raise
    except BaseException as error:
        threads.note_end(error)
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename in _OWN_FILES:
            own = own.tb_next
        error.__traceback__ = own
        ending.note(error)
        ending.show(error, own)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # the interpreter ends itself by SIGINT, and has nothing to add
            raise
        sys.exit(1)
    threads.note_end(None)
    sys.exit(0)


_OWN_FILES = (__file__, main_module.__file__, runpy.__file__, "<frozen runpy>")


if __name__ == "__main__":
    main()
