"""How a script ends that raises: its last words in the log, as the interpreter writes them, and those for the agent.

The agent reads torch's error file, which `@record` writes for exceptions alone. Here every end that has words has a
message: a `SystemExit` with a text, what `argparse` said, an interrupt. Writing it must never hide the error itself:
what goes wrong on the way is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

_MOST_MEMBERS = 3  # of a group of exceptions that are named


def note(error: BaseException) -> None:
    """Write the error to torch's error file, as `@record` does, unless the script has written one."""
    with contextlib.suppress(Exception):
        message, target = describe(error), os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        if not target or message is None or Path(target).exists():
            return
        told: dict[str, Any] = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        cause = _find_cause(error)
        if cause is not None:
            told["extraInfo"]["py_callstack"] = _format(cause)
        Path(target).write_text(json.dumps({"message": told}))


def show(error: BaseException, own: TracebackType | None) -> None:
    """Write an uncaught exception to the log, with the script's own lines `own`, as the interpreter does."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, own
    try:
        sys.excepthook(type(error), error, own)
    except SystemExit:
        raise
    except BaseException as broken:
        broken.__traceback__ = broken.__traceback__ and broken.__traceback__.tb_next  # without this function
        broken.__context__ = None if broken.__context__ is error else broken.__context__
        with contextlib.suppress(Exception):
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(broken), broken, broken.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(type(error), error, own)


def describe(error: BaseException) -> str | None:
    """The message of an end: type and text of an exception, or the words of a `SystemExit`; None if it has none."""
    if isinstance(error, SystemExit):
        return _describe_exit(error)
    members = [describe(one) or type(one).__name__ for one in _walk_group(error)]
    inner = f": {'; '.join(members[:_MOST_MEMBERS])}" if members else ""
    return f"{type(error).__name__}: {_read_text(error)}{inner}".removesuffix(": ")


def _describe_exit(error: SystemExit) -> str | None:
    if error.code is None or error.code == 0:
        return None
    if not isinstance(error.code, int):
        return _read_text(error.code)
    said = _find_words_of_argparse(error)
    cause = _find_cause(error)
    return said or (None if cause is None else describe(cause))


def _find_cause(error: BaseException) -> BaseException | None:
    """The exception with which an end began: of a `SystemExit` the one that the script was handling."""
    if not isinstance(error, SystemExit):
        return error
    handled = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if handled is None or _find_words_of_argparse(error) else _find_cause(handled)


def _find_words_of_argparse(error: SystemExit) -> str:
    """What `ArgumentParser.error` has written to stderr before it raised this."""
    exits = getattr(getattr(sys.modules.get("argparse"), "ArgumentParser", None), "exit", None)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if exits is None or not frames or frames[-1].f_code is not exits.__code__:
        return ""
    return str(frames[-1].f_locals.get("message") or "").strip()


def _walk_group(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, also those in groups in it."""
    for one in getattr(error, "exceptions", ()) if _is_group(error) else ():
        if _is_group(one):
            yield from _walk_group(one)
        else:
            yield one


def _is_group(error: BaseException) -> bool:
    return sys.version_info >= (3, 11) and isinstance(error, BaseExceptionGroup)  # noqa: F821


def _read_text(value: object) -> str:
    try:
        return str(value)
    except Exception as broken:
        return f"<its text cannot be read: {type(broken).__name__}>"


def _format(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # of a text, on which some versions fail
        return "".join(traceback.format_tb(error.__traceback__)) + (describe(error) or "")
