"""Documents that differ from a good one in one value, and what becomes of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from elasticjob_operator import convert
from elasticjob_operator.convert import ConversionError

_VALUES: tuple[Any, ...] = (None, 0, -1, True, "x", "$(a) `b` 'c", [], ["x"], [None], [{"x": 1}], {}, {"x": 1})


def mutate(document: Any) -> Iterator[Any]:
    """Each value of the document is replaced by every other kind of value, one at a time."""
    for path in _walk(document):
        for value in _VALUES:
            one = copy.deepcopy(document)
            inner: Any = one
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            yield one


def _walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from _walk(inner, (*path, key))


def outcomes(documents: Iterable[dict[str, Any]]) -> set[str]:
    """Convert each of them; anything but a result or one message is raised."""
    found = set()
    for document in documents:
        try:
            convert.convert(document)
            found.add("converted")
        except ConversionError as error:
            assert str(error)
            found.add("refused")
    return found
