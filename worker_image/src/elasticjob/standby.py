"""A worker process that waits, with torch already imported, and then becomes the user's script.

`python -u -m elasticjob.standby FD` imports torch and waits for the order on the socket FD: arguments,
environment and output files. From then on it is the worker: same pid, same signals, same exit code as if the
script had been started by itself. `python -u -m elasticjob.standby run …` does the same without waiting.
A worker started this way dies with its agent, and notes an uncaught exception where torch's agent looks for it.
Nothing of elasticjob that needs torch may be imported before torch is meant to be.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_MAX_ORDER = 4 * 1024 * 1024


def main() -> None:
    die_with_parent()
    if sys.argv[1] == "run":
        become(sys.argv[2:])
    order = _wait_for_order(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(order["env"])
    become(order["argv"])


def die_with_parent() -> None:
    """Without its agent a worker is a process of a world that nobody watches any more."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux
    if os.getppid() != parent:
        sys.exit(0)  # it died before the call


def _wait_for_order(channel: socket.socket) -> dict[str, Any]:
    import torch.distributed  # noqa: F401 - this is what the wait is for

    if not select.select([channel], [], [], 0)[0]:
        _import_what_optimizers_need()
    with channel:
        space = socket.CMSG_SPACE(2 * array.array("i").itemsize)
        text, files = b"", array.array("i")
        while not text.endswith(b"\n"):
            part, ancillary, _, _ = channel.recvmsg(_MAX_ORDER, space)
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    files.frombytes(data[: len(data) - len(data) % files.itemsize])
            if not part:
                sys.exit(0)  # the agent does not need us
            text += part
    for standard, given in zip((1, 2), files, strict=False):
        os.dup2(given, standard)
        os.close(given)
    order: dict[str, Any] = json.loads(text)
    return order


def _import_what_optimizers_need() -> None:
    """The first optimizer of a process imports torch's compiler, compiled or not: a second, which is free while we wait."""
    with contextlib.suppress(ImportError):
        import torch._dynamo  # noqa: F401


def become(argv: list[str]) -> NoReturn:
    """Run a script or `-m module` as `__main__`, as the interpreter itself would."""
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            _run_script(argv)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename in _OWN_FILES:
            own = own.tb_next
        error.__traceback__ = own
        note_error(error)
        sys.excepthook(type(error), error, own)
        sys.exit(1)
    sys.exit(0)


_OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def _run_script(argv: list[str]) -> None:
    script = argv[0]
    code = compile(Path(script).read_bytes(), script, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    module.__dict__["__cached__"] = None
    sys.modules["__main__"] = module
    sys.argv = argv
    sys.path[0] = str(Path(script).resolve().parent)
    exec(code, module.__dict__)  # noqa: S102 - this is what an interpreter does


def note_error(error: BaseException) -> None:
    """Write the error where torch's agent looks for it, as its `@record` does, unless the script did so."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not target or Path(target).exists():
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": text[-16384:], "timestamp": str(int(time.time()))},
    }
    try:
        Path(target).write_text(json.dumps({"message": message}))
    except OSError:
        return  # a full disk must not hide the error itself


if __name__ == "__main__":
    main()
