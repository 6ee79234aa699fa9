"""How the standby comes to have the imports of the script: a child makes them, and goes on in its place."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elasticjob.launch import frameworks, preload, process
from elasticjob.launch.leading import Import, Source, Step, find_imports, find_leading, find_packages
from elasticjob.torchcompat import forking

IMPORT_SECONDS = 60.0  # imports that take longer are made by the workers


def import_ahead(arguments: Sequence[str], code: str = "") -> None:
    """Import what the script will import first, in a child that goes on in our place; return in that child.

    Where that does harm, the next child goes less far. The parent waits: it must live, since its children die with it.
    It returns too when no child could go on: then the workers import for themselves, and meet what is wrong.
    `code`: a folder of an update, from which nothing is imported.
    """
    try:
        _import_ahead(arguments, code)
    except Exception as error:  # whatever it is, workers can start
        print(f"elasticjob: the workers make their imports themselves: {error!r}.", file=sys.stderr, flush=True)


def _import_ahead(arguments: Sequence[str], code: str) -> None:
    script = _find_script(arguments, code)
    steps = () if script is None else _find_steps(script)
    while script is not None and _saves_time(steps):
        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            ours.close()
            process.die_with_parent(os.getppid())
            try:
                _try(steps, script, theirs)
            except BaseException:  # our parent serves in our place
                os._exit(1)
            return
        theirs.close()
        told = _hear(ours)
        if told is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        elif told < 0:
            _, status = os.waitpid(child, 0)  # it serves now
            if not status:
                os._exit(0)
            return  # something killed it: we serve, and the workers import for themselves
        os.waitpid(child, 0)
        ours.close()
        steps = steps[: min(told or 0, len(steps) - 1)]


def _find_steps(script: preload.Script) -> tuple[Step, ...]:
    texts = [preload.read_source(script.file)]

    def read(module: str) -> Source | None:
        source = script.read_own(module)
        texts.extend([] if source is None else [source.text])
        return source

    leading = find_leading(texts[0], read, script.package)
    return (*leading, *frameworks.find_late(leading, texts))


def _saves_time(steps: Sequence[Step]) -> bool:
    """Whether something is imported that is not loaded yet. Python's own modules take no time."""
    return not all(map(_is_loaded, find_imports(steps)))


def _is_loaded(step: Import) -> bool:
    module = sys.modules.get(step.module)
    is_python = step.module.partition(".")[0] in sys.stdlib_module_names
    return is_python or (module is not None and vars(module).keys() >= set(step.names))


def _try(steps: Sequence[Step], script: preload.Script, told: socket.socket) -> None:
    """In the child: import, and go on in the parent's place where that did no harm. Otherwise the process ends."""
    began, loaded = time.monotonic(), len(sys.modules)
    outcome = preload.run(steps, script)
    lost = outcome.harm is None and _loses_devices()
    if outcome.harm is not None or lost:
        why = outcome.harm or "a device was started"
        print(f"elasticjob: the workers make some of their imports themselves: {why}.", file=sys.stderr, flush=True)
        told.sendall(b"%d\n" % (0 if lost else outcome.done))
        os._exit(0)
    process.freeze()
    if (new := len(sys.modules) - loaded) > 0:
        packages = ", ".join(one for one in find_packages(steps) if one in sys.modules)
        took, size = time.monotonic() - began, preload.measure_private_mib()
        text = f"{new} modules imported before the workers start, in {took:.1f} s and {size} MiB: {packages}"
        print(f"elasticjob: {text}.", file=sys.stderr, flush=True)
    told.sendall(b"-1\n")
    told.close()


def _hear(child: socket.socket) -> int | None:
    """How many steps did no harm; -1 where the child goes on with all of them, None where it ended or hangs."""
    child.settimeout(IMPORT_SECONDS)
    try:
        return int(child.makefile("rb").readline())
    except (OSError, ValueError):
        return None


def _loses_devices() -> bool:
    """Whether a process that is forked from this one could not use the devices."""
    child = os.fork()
    if not child:
        os._exit(int(forking.has_lost_devices()))
    return os.waitpid(child, 0)[1] != 0


def _find_script(arguments: Sequence[str], code: str) -> preload.Script | None:
    """The script that torchrun will find in these arguments; None where it finds none."""
    from torch.distributed import run as torchrun

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser = torchrun.get_args_parser()
            parser.add_argument("--use-env", "--use_env", action="store_true")  # of torch.distributed.launch
            args = parser.parse_args(list(arguments))
        argv = [str(args.training_script), *map(str, args.training_script_args)]
        return preload.find_script(argv, is_module=bool(args.module), cwd=Path.cwd(), code=code)
    except (SystemExit, OSError, ValueError):  # it says so itself
        return None
