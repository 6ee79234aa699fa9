"""Work in numbers that depend on nothing but the code: the lines that run, and the calls that are made.

Python's garbage collection may come at any time, and calls who wants to know of it: hypothesis does. So it waits.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def count_lines(work: Callable[[], object]) -> int:
    """The lines that this runs, each time that it runs them."""
    lines = 0

    def note(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return note

    _trace(work, note)
    return lines


def count_calls(work: Callable[[], object]) -> int:
    """The calls of functions, in Python and in C, that this makes."""
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    with _without_collection():
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(before)
    return calls


def count_work(work: Callable[[], object]) -> int:
    """The instructions of Python that this runs: those of a comprehension within one line, too."""
    steps = 0

    def note(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return note

    _trace(work, note)
    return steps


def _trace(work: Callable[[], object], note: Callable[[FrameType, str, object], Any]) -> None:
    before = sys.gettrace()
    with _without_collection():
        sys.settrace(note)
        try:
            work()
        finally:
            sys.settrace(before)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
