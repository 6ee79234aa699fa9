"""What a script can see of its own start, as JSON in the file $LOOK_OUT."""

import builtins
import dataclasses
import gc
import json
import locale
import multiprocessing
import os
import resource
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any


def annotated(number: int) -> str:
    return str(number)


@dataclasses.dataclass
class Annotated:
    number: float = 0.5


MODULE_LEVEL: int = 1


def look_at_globals() -> dict[str, Any]:
    names = {name: value for name, value in GLOBALS.items() if name[:2] == "__"}
    return {
        name: getattr(value, "__name__", None) or (value if isinstance(value, str | None) else type(value).__name__)
        for name, value in names.items()
    }


def look_at_stream(stream: Any) -> dict[str, Any] | None:
    if stream is None:
        return None
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines")
    buffer = getattr(stream, "buffer", None)
    return {name: getattr(stream, name, None) for name in names} | {
        "buffer": type(buffer).__name__,
        "isatty": stream.isatty(),
        "fileno": stream.fileno(),
        "standard": stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__),
    }


def look_at_files() -> dict[int, str]:
    found = {}
    for number in sorted(int(file.name) for file in Path("/proc/self/fd").iterdir()):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # that of the listing
        found[number] = stat.filemode(mode)[0]
    return found


def look_at_loader(loader: Any) -> list[Any]:
    return [type(loader).__name__, getattr(loader, "name", None), getattr(loader, "path", None)]


def look() -> dict[str, Any]:
    spec = GLOBALS.get("__spec__")
    main = sys.modules["__main__"]
    return {
        "globals": look_at_globals(),
        "loader": look_at_loader(GLOBALS.get("__loader__")),
        "spec": None if spec is None else [spec.name, spec.origin, spec.cached, look_at_loader(spec.loader)],
        "is main": main.__dict__ is GLOBALS and type(main).__name__,
        "builtins": GLOBALS["__builtins__"] is builtins,
        "annotations": [repr(annotated.__annotations__), repr(GLOBALS.get("__annotations__"))],
        "field": repr(dataclasses.fields(Annotated)[0].type),
        "code": [annotated.__code__.co_flags, CODE.co_flags, CODE.co_filename, CODE.co_name],
        "flags": {name: value for name in dir(sys.flags) if isinstance(value := getattr(sys.flags, name), int)},
        "options": [sys.warnoptions, sorted(sys._xoptions.items())],
        "path": sys.path,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "executable": sys.executable,
        "files": look_at_files(),
        "streams": [look_at_stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "filesystem": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "signals": {number.name: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.Signals},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "environ": dict(os.environ),
        "cwd": str(Path.cwd()),
        "tempdir": tempfile.tempdir,  # None: TMPDIR is read when a script first asks
        "umask": [os.umask(0o77), os.umask(0o77)][0],
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"
        },
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "threads": [sorted(one.name for one in threading.enumerate()), len(list(Path("/proc/self/task").iterdir()))],
        "main thread": threading.current_thread() is threading.main_thread(),
        "leads its session": os.getsid(0) == os.getpid(),
        "warnings": [str(one[:3]) for one in warnings.filters],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace() is None],
        "further hooks": [
            threading.excepthook is threading.__excepthook__,
            sys.unraisablehook is sys.__unraisablehook__,
            warnings.showwarning.__module__,
            [getattr(one, "__qualname__", "") for one in sys.path_hooks],
        ],
        "names": sorted(vars(builtins)),
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "timers": [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "locale": [locale.setlocale(locale.LC_ALL), time.tzname],
        "defaults": [
            socket.getdefaulttimeout(),
            multiprocessing.get_start_method(allow_none=True),
            threading.stack_size(),
            sys.getswitchinterval(),
        ],
        "when memory ends": Path("/proc/self/oom_score_adj").read_text(),
        "finders": [type(one).__name__ if not isinstance(one, type) else one.__name__ for one in sys.meta_path],
        "recursion": sys.getrecursionlimit(),
        "root logger": logging_state(),
        "bytecode": sys.dont_write_bytecode,
    }


def logging_state() -> list[Any]:
    import logging

    return [len(logging.root.handlers), logging.root.level, logging.root.manager.disable]


GLOBALS = globals()
CODE = sys._getframe().f_code
assert sys._getframe().f_globals is GLOBALS
Path(os.environ["LOOK_OUT"]).write_text(json.dumps(look()))
