"""The state that the ranks of a session agree on, for what has to follow it.

When they go back to an earlier one, what was saved since is not trusted. When they have one, nothing is restored.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: dict[str, Callable[[int], None]] = {}
_has_state = False


def on_going_back(name: str, listener: Callable[[int], None]) -> None:
    """Call `listener` with the step that all ranks agreed on. It replaces the earlier one of this name."""
    _listeners[name] = listener


def go_back(step: int) -> None:
    """The ranks go back to this step."""
    for listener in _listeners.values():
        listener(step)


def enter(has_state: bool) -> None:
    """A world begins, with a state that some of its ranks had in memory, or with none."""
    global _has_state  # noqa: PLW0603
    _has_state = has_state


def has_state() -> bool:
    """Whether the ranks of the present world go on from memory."""
    return _has_state
