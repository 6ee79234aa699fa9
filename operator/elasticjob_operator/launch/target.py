"""What `launch` and `Run.update` send: a function or a script of this machine, with its arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from elasticjob_operator.api import names
from elasticjob_operator.client.errors import InvalidError
from elasticjob_operator.launch.bundle import Bundle, CodeError, read_code
from elasticjob_operator.launch.function import ENTRY, write_function
from elasticjob_operator.launch.source import Source, find_source

T = TypeVar("T")


def find_target(
    target: Callable[..., Any] | str | Path,
    arguments: Mapping[str, Any] | Sequence[str],
    code: str | Path | None,
    exclude: Sequence[str],
    *,
    in_place: bool,
) -> tuple[Source, list[str]]:
    """The source of a target, and the words of its command line. Raises CodeError or InvalidError.

    `arguments`: of a function, keywords and JSON values; of a script, words.
    """
    if callable(target):
        if not isinstance(arguments, Mapping) and len(arguments):
            raise InvalidError("arguments: of a function are keywords: write {'epochs': 3}")
        given = arguments if isinstance(arguments, Mapping) else {}
        bundle = read_code(Path(code), exclude) if code is not None else Bundle(())
        for file in write_function(target, given, has_code=code is not None):
            bundle = bundle.with_file(file)
        title = getattr(target, "__name__", "job")
        return Source(("torchrun", f"{names.CODE_PATH}/{ENTRY}"), bundle, title), []
    if isinstance(arguments, (Mapping, str)) or not all(isinstance(word, str) for word in arguments):
        raise InvalidError("arguments: of a script are a list of words: write ['--epochs', '3']")
    source = find_source(str(target), None if code is None else str(code), exclude, in_place=in_place)
    if source.bundle is None and str(target).endswith(".py") and not Path(target).exists():
        raise CodeError(f"{target}: no such file: name a script of this machine")
    return source, list(arguments)


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a thread of its own: the caller's may run an event loop already."""
    with ThreadPoolExecutor(1, thread_name_prefix="elasticjob-launch") as pool:
        return pool.submit(lambda: asyncio.run(work())).result()
