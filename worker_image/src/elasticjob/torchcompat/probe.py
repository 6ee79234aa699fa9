"""A private name of torch: its purpose, whether this torch has it, and the cost of its absence."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """Private names of torch that serve one purpose."""

    purpose: str
    names: tuple[str, ...]  # dotted paths; the last part can be found in the sources
    without: str  # the cost of their absence: time or convenience, never a wrong result
    look: Callable[[], bool]

    def holds(self) -> bool:
        """Whether this torch has the names, in the expected form. Never raises."""
        try:
            return self.look()
        except Exception:
            return False


def find(path: str) -> Any:
    """The object at a dotted path, importing modules on the way; None if a part is missing."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for name in parts[count:]:
            found = getattr(found, name, None)
        return found
    return None


def has_all(*paths: str) -> Callable[[], bool]:
    """A check that only requires the names to exist."""
    return lambda: all(find(path) is not None for path in paths)


def takes(path: str, parameter: str) -> bool:
    """Whether the function or class has a parameter of this name."""
    target = find(path)
    return target is not None and parameter in inspect.signature(target).parameters


def stores(path: str, *attributes: str) -> bool:
    """Whether the source of the class's constructor mentions these instance attributes; it is not called."""
    constructor = find(f"{path}.__init__")
    return constructor is not None and set(attributes) <= set(constructor.__code__.co_names)
