"""When the ranks of a session go back to a state that they agreed on, what was saved since is not trusted."""

from __future__ import annotations

from collections.abc import Callable

_listeners: dict[str, Callable[[int], None]] = {}


def on_going_back(name: str, listener: Callable[[int], None]) -> None:
    """Call `listener` with the step that all ranks agreed on. It replaces the earlier one of this name."""
    _listeners[name] = listener


def go_back(step: int) -> None:
    """The ranks go back to this step."""
    for listener in _listeners.values():
        listener(step)
