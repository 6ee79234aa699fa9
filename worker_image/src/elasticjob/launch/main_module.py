"""Runs a script as the main module of a process that has done other things before: what `python -u SCRIPT` does.

The interpreter's own steps between its start and the first line of a script, in its order (`pymain_run_python` of
CPython). A module, a folder and an archive are run by the function of `runpy` that the interpreter itself calls. A file
is not: `runpy.run_path` puts the former `__main__` back when the file has ended, while its threads and its `atexit`
functions still run.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import stat
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_first: str | None = None  # what this process has put first on sys.path for the script


def leave_path() -> None:
    """Take the launcher's own folder off sys.path; the interpreter put it there."""
    if not _is_path_safe():
        del sys.path[:1]


def lead_path(entry: str | None) -> None:
    """Put the script's entry first on sys.path, once: a library that is imported afterwards may put another before."""
    global _first  # noqa: PLW0603 - a forked process knows what its parent did
    if entry is not None and entry != _first:
        if _first is not None and _first in sys.path:  # another revision of the script
            sys.path.remove(_first)
        sys.path.insert(0, entry)
        _first = entry


def find_search_path(environ: Mapping[str, str]) -> list[str]:
    """The folders of PYTHONPATH in the present directory, as the interpreter puts them on sys.path."""
    text = environ.get("PYTHONPATH", "")
    return [os.path.abspath(one) for one in text.split(os.pathsep)] if text else []  # noqa: PTH100 - links stay


def change_search_path(before: Sequence[str], after: Sequence[str]) -> None:
    """Let sys.path have these folders of PYTHONPATH in place of those with which the interpreter was started."""
    if list(before) == list(after):
        return
    lead = sys.path[: _first is not None and sys.path[:1] == [_first]]
    rest = sys.path[len(lead) :]
    at = next((place for place, one in enumerate(rest) if one in before), 0)
    others = [one for one in rest[at:] if one not in before and one not in after]
    sys.path[:] = [*lead, *rest[:at], *after, *others]


def find_first_entry(argv: Sequence[str]) -> str | None:
    """What the interpreter puts first on sys.path for `-m MODULE`, a file, a folder or an archive; None for nothing."""
    if argv[0] == "-m":
        return None if _is_path_safe() else str(Path.cwd())
    path = make_absolute(argv[0])
    if is_container(path):
        return path
    return None if _is_path_safe() else str(Path(path).resolve().parent)


def is_container(path: str) -> bool:
    """Whether this is a folder or an archive, whose `__main__` is to run."""
    return pkgutil.get_importer(path) is not None


def make_absolute(script: str) -> str:
    """As the interpreter does: links, `./` and `../` stay."""
    return script if os.path.isabs(script) else os.getcwd() if script == "." else os.path.join(os.getcwd(), script)  # noqa: PTH109, PTH117, PTH118


def run(argv: Sequence[str]) -> None:
    """Run `SCRIPT ARGUMENTS` or `-m MODULE ARGUMENTS`. Returns at the end of the script, or raises what it raises."""
    sys.modules["__main__"] = _make_main()
    if "__mp_main__" in sys.modules:  # as spawned processes call it, once multiprocessing is imported
        sys.modules["__mp_main__"] = sys.modules["__main__"]
    sys.orig_argv = [sys.executable, "-u", *argv]
    lead_path(find_first_entry(argv))
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        _run_as_main(argv[1], True)
        return
    sys.argv = list(argv)
    path = make_absolute(argv[0])
    if is_container(path):
        _run_as_main("__main__", False)
    else:
        _run_file(path)


_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]


def _make_main() -> types.ModuleType:
    """The main module as it is before the script runs. The launcher's own is still in use by the calls below us."""
    module = types.ModuleType("__main__")
    names = module.__dict__
    names |= {"__loader__": importlib.machinery.BuiltinImporter, "__builtins__": builtins}
    if sys.version_info < (3, 14):
        names |= {"__annotations__": {}}
    return module


def _run_file(path: str) -> None:
    try:
        with io.open_code(path) as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                _refuse(f"{path!r} is a pipe, which only the first worker can read: give torchrun a file.")
            content = file.read()
    except OSError as error:
        _refuse(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}")
    loader: importlib.machinery.SourcelessFileLoader | importlib.machinery.SourceFileLoader
    if path.endswith(".pyc") or content[:2] == importlib.util.MAGIC_NUMBER[:2]:
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        code: Any = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        code = compile(content, path, "exec", dont_inherit=True)
    names = sys.modules["__main__"].__dict__
    names |= {"__file__": path, "__cached__": None, "__loader__": loader}
    exec(code, names)  # noqa: S102 - as the interpreter does


def _refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(2) from OSError(text)


def _is_path_safe() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))  # since Python 3.11
