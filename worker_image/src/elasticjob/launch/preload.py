"""Imports what a script will import, in a process from which its workers are forked.

Not every import may come before a fork. A thread does not survive it, nor does a device's context; a rank that is read
is nobody's yet. So the imports are made under watch, in a process that can be thrown away: `run` says how far they went
without harm, and a fresh process goes no farther. `ELASTICJOB_PRELOAD=0` turns it off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import stat
import sys
import threading
import tokenize
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticjob import env
from elasticjob.launch import frameworks, main_module
from elasticjob.launch.leading import Attempt, Import, SetVariable, Source, Step, find_parents

VARIABLE = "ELASTICJOB_PRELOAD"
OWN_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        *("ELASTICJOB_GENERATION", "ELASTICJOB_REPEATED_FAILURES", "ELASTICJOB_RESTORE_BEFORE", "TRACEPARENT"),
        "ELASTICJOB_CODE_REVISION",
    }
)
# What torch, its libraries and the interpreter itself read when they are loaded, which nobody can watch.
READ_AT_START = (
    *("TORCH", "PYTORCH", "TRITON_", "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_"),
)
read_names: set[str] = set()  # variables that the imports of this process have asked for
_OPEN = "/proc/self/fd"
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/habanalabs")


@dataclass(frozen=True)
class Footprint:
    """What a process has that a fork does not copy, such as threads, or shares, such as a file with its locks."""

    threads: int = 1
    python_threads: int = 1
    children: int = 0
    sockets: int = 0
    devices: int = 0
    files: int = 0
    pipes: int = 0

    @classmethod
    def look(cls) -> Footprint:
        open_files = list(Path(_OPEN).iterdir())
        files = [_read_link(file) for file in open_files]
        return cls(
            threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
            python_threads=threading.active_count(),
            children=len(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_bytes().split()),
            sockets=sum(file.startswith("socket:") for file in files),
            devices=sum(file.startswith(_DEVICES) for file in files),
            files=sum(map(_is_regular, open_files)),
            pipes=sum(file.startswith(("pipe:", "anon_inode:")) for file in files),
        )

    def without_passing(self, before: Footprint) -> Footprint:
        """The same with no more of what a module may have for a moment than `before`: while it reads a file, it imports
        the codec.
        """
        return replace(
            self,
            children=min(self.children, before.children),
            sockets=min(self.sockets, before.sockets),
            files=min(self.files, before.files),
            pipes=min(self.pipes, before.pipes),
        )


def _count_open() -> int:
    return len(os.listdir(_OPEN))  # noqa: PTH208 - paths would cost more than the modules


def _read_link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # the descriptor of the listing itself
        return ""


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)  # also if its name is gone
    except OSError:
        return False


def find_harm(before: Footprint, after: Footprint, module: str, asked: Sequence[str] = ()) -> str | None:
    """Why a module must not be imported before the fork; None where it may.

    `asked`: which of `OWN_VARIABLES` it read.
    """
    package = module.partition(".")[0]
    if after.devices > before.devices:
        return f"{module} opens a device"
    if after.python_threads > before.python_threads:
        return f"{module} starts a thread"
    if after.threads > before.threads and package not in frameworks.FORK_SAFE_THREADS:
        return f"{module} starts a native thread"
    if after.children > before.children:
        return f"{module} starts a process"
    if after.sockets > before.sockets:
        return f"{module} opens a socket"
    if after.files > before.files:
        return f"{module} opens a file"
    if after.pipes > before.pipes:
        return f"{module} opens a pipe or a queue of events"
    if asked and module not in frameworks.MENDED:
        return f"{module} reads {asked[0]}"
    return None


def merge_environment(
    before: Mapping[str, str], after: Mapping[str, str], ordered: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a worker: what was ordered, with what the imports changed.

    `before` and `after` are those of the process that imported. What the launcher set for this worker wins.
    """
    merged = dict(ordered)
    for name in before.keys() | after.keys():
        if before.get(name) == after.get(name) or ordered.get(name) != before.get(name):
            continue
        if name in after:
            merged[name] = after[name]
        else:
            merged.pop(name, None)
    return merged


def find_stale(
    before: Mapping[str, str], after: Mapping[str, str], read: Collection[str], environ: Mapping[str, str]
) -> list[str]:
    """Which of these variables would change what is imported already, in a process with this environment.

    `read`: those that the imports have asked for.
    """
    found = {
        name for name in before.keys() | after.keys() if _value(name, before, environ) != _value(name, after, environ)
    }
    return sorted(name for name in found if name in read or name.startswith(READ_AT_START))


def _value(name: str, given: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    return given.get(name, environ.get(name))


def measure_private_mib() -> int:
    """MiB of memory that this process shares with none of those that it was forked from."""
    text = Path("/proc/self/smaps_rollup").read_text()
    fields = (line.split() for line in text.splitlines() if line.startswith("Private_"))
    return sum(int(field[1]) for field in fields) // 1024


def is_on(environ: Mapping[str, str]) -> bool:
    return environ.get(VARIABLE, "1").strip().lower() not in ("0", "false", "no")


@dataclass(frozen=True)
class Script:
    """The script that the workers will run: a file, a folder with a main module, or a module of this directory."""

    argv: tuple[str, ...]
    file: Path
    entry: str | None  # the first one of its sys.path, where its own modules lie; None where it has none of its own
    package: str = ""
    sent: tuple[str, ...] = ()  # further ones, of the code that travels: an update puts other modules in their place
    code: str = ""  # where an update is unpacked, whose modules are the script's own too

    def read_own(self, module: str) -> Source | None:
        """The source of a module that lies beside the script, or in the code that was sent with it."""
        for entry in (self.entry, *self.sent):
            found = None if entry is None else _read_module(Path(entry), module)
            if found is not None:
                return found
        return None


def _read_module(folder: Path, module: str) -> Source | None:
    place = folder.joinpath(*module.split("."))
    for file, is_package in ((place / "__init__.py", True), (place.with_suffix(".py"), False)):
        if file.is_file():
            return Source(read_source(file), is_package)
    return Source("", is_package=True) if place.is_dir() and any(place.glob("*.py")) else None


def read_source(file: Path) -> str:
    """The text of a Python file, in the encoding that it names; "" where there is none to read, as in an archive."""
    try:
        with tokenize.open(file) as text:
            return text.read()
    except (OSError, SyntaxError, ValueError):  # SyntaxError: of the line that names the encoding
        return ""


def find_script(argv: Sequence[str], *, is_module: bool, cwd: Path, code: str = "") -> Script | None:
    """Where the script is; None where it is no file that can be read. `code`: where an update is unpacked."""
    if not argv:
        return None
    entry = main_module.find_first_entry(("-m", *argv) if is_module else argv)
    sent = tuple(one for one in sys.path if one != entry and _is_within_any(one, _find_sent(code)))
    if not is_module:
        file = Path(main_module.make_absolute(argv[0]))
        file = file / "__main__.py" if file.is_dir() else file
        return Script(tuple(argv), file, entry, sent=sent, code=code) if file.is_file() else None
    place = cwd.joinpath(*argv[0].split("."))
    for file, package in ((place / "__main__.py", argv[0]), (place.with_suffix(".py"), argv[0].rpartition(".")[0])):
        if file.is_file():
            return Script((str(file), *argv[1:]), file, entry, package, sent, code)
    return None


def _find_sent(code: str) -> tuple[str, ...]:
    """Where the code lies that was sent: with the job, and with an update that is unpacked in `code`, if not ""."""
    return (env.CODE_PATH, code) if code else (env.CODE_PATH,)


def _is_within_any(path: str, folders: Iterable[str]) -> bool:
    return any(f"{path}{os.sep}".startswith(f"{folder}{os.sep}") for folder in folders)


@dataclass(frozen=True)
class Outcome:
    """How far the imports went: `done` of the steps, then `harm` where something kept them from going on."""

    done: int
    harm: str | None = None


def run(steps: Sequence[Step], script: Script) -> Outcome:
    """Carry out the steps in this process, up to the first that does harm. After harm the process is of no use."""
    watch = _Watch(script.entry, _find_sent(script.code))
    main_module.lead_path(script.entry)
    sys.argv = list(script.argv)
    with watch:
        for number, step in enumerate(steps):
            try:
                _carry_out(step)
            except _HarmDone as harm:
                return Outcome(number, str(harm))
            except BaseException as error:  # an import may raise anything; the worker will meet it and report it
                return Outcome(number, watch.harm or f"{type(error).__name__}: {error}")
            watch.finish(step)
            if watch.harm is not None:
                return Outcome(number, watch.harm)
    return Outcome(len(steps))


class _HarmDone(BaseException):
    """Not an Exception, so that few libraries catch it. Those that do are found out by `_Watch.harm`."""


def _carry_out(step: Step) -> None:
    match step:
        case SetVariable(is_default=True):
            os.environ.setdefault(step.name, step.value)
        case SetVariable():
            os.environ[step.name] = step.value
        case Attempt(steps):
            _attempt(steps)
        case Import():
            module = importlib.import_module(step.module)
            for name in step.names:
                _import_name(module, step, name)


def _attempt(steps: Sequence[Step]) -> None:
    """Carry out steps up to the first that is not there. A module that fails halfway is the worker's to run, once."""
    for step in steps:
        try:
            _carry_out(step)
        except ModuleNotFoundError as error:
            if isinstance(step, Import) and (error.name or "") in find_parents(step.module):
                return
            raise
        if isinstance(step, Import) and not all(hasattr(sys.modules[step.module], name) for name in step.names):
            return


def _import_name(module: ModuleType, step: Import, name: str) -> None:
    """`from module import name`; a missing name is the script's mistake, and the worker's to report."""
    if not hasattr(module, name) and hasattr(module, "__path__"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{step.module}.{name}")


class _Watch(importlib.abc.MetaPathFinder):
    """Looks after every module that is imported at what its own code did, apart from what it imports in turn."""

    def __init__(self, entry: str | None, sent: Sequence[str]) -> None:
        self.harm: str | None = None
        self._own = (*([] if entry is None else [str(Path(entry))]), *sent)
        self._last = Footprint.look()
        self._depth = 0  # modules that are being loaded
        self._suspicion: str | None = None  # what one of them has done, perhaps for a moment
        self.asked: list[str] = []

    def __enter__(self) -> _Watch:
        watch = self
        base: Any = type(os.environ)

        class Watched(base):  # type: ignore[misc]
            def __getitem__(self, name: str) -> Any:
                read_names.add(str(name))  # a name of another type raises an error below
                if name in OWN_VARIABLES:
                    watch.asked.append(name)
                return super().__getitem__(name)

        self._plain = base
        os.environ.__class__ = Watched
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        os.environ.__class__ = self._plain

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the finders after this one say, with a look at what the module does when it is loaded."""
        spec = self._ask_others(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if spec is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec  # Python's own modules and namespaces
        if self._is_own(spec.origin or ""):
            self.harm = self.harm or f"{fullname} is the script's own"
            raise _HarmDone(self.harm)
        if "exec_module" not in loader.__dict__:
            loader.exec_module = functools.partial(self._load, loader, loader.exec_module)
        return spec

    def _is_own(self, origin: str) -> bool:
        return _is_within_any(origin, self._own) and "site-packages" not in origin

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        others = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in others:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _load(self, loader: Any, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Execute a module. A lazy one may come here much later, in a worker: then nobody watches."""
        loader.__dict__.pop("exec_module", None)
        if self not in sys.meta_path:
            load(module)
            return
        name, outer, self.asked = module.__name__, self.asked, []
        self._depth += 1
        files = _count_open()
        try:
            load(module)
        finally:
            self._depth -= 1
            asked, self.asked = self.asked, outer
            self._look(name, asked, files)
        if self.harm is not None:
            raise _HarmDone(self.harm)

    def finish(self, step: Step) -> None:
        """A step is done; what ran outside of any module, such as a lazy attribute, belongs to it."""
        asked, self.asked = self.asked, []
        self._look(step.label, asked)

    def _look(self, module: str, asked: Sequence[str], files: int = 0) -> None:
        """`files`: that were open when the module began."""
        before, now = self._last, Footprint.look()
        harm, without = find_harm(before, now, module, asked), now.without_passing(before)
        if harm and self._depth and find_harm(before, without, module, asked) is None:
            self._last = without
            if without.children < now.children or _count_open() > files:  # and not a module around it
                self._suspicion = self._suspicion or harm
            return
        self.harm = self.harm or (harm and (self._suspicion or harm))
        self._suspicion, self._last = None, now
