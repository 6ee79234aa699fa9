"""Condenses what a training script prints: steps that it writes as JSON become at most one line a second. Pure.

Scripts that log for programs write an object per step and line; a person wants to see how far the training is, how
large the loss and the world are, and how fast it goes. Every other line stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

EVERY: Final = 1.0  # seconds
_LONGEST: Final = 10_000  # characters of a line that may be a step
_MOST: Final = 6  # numbers in a line
_LARGEST: Final = 1 << 63  # a larger integer is no count, and may not fit in a float
_WORLD: Final = ("worldSize", "world_size")
_HIDDEN: Final = frozenset(  # what is the same in each line, or said otherwise
    {"event", "step", "epoch", "time", "timestamp", "pid", "rank", "local_rank", "generation", *_WORLD}
)


class Steps:
    """The lines of one rank, one after another."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] | None = None  # a step that has not been shown
        self._shown: tuple[float, int] | None = None  # when, and which step
        self._seen = 0.0

    def feed(self, line: str, now: float) -> list[str]:
        """The lines to show for a line that was read at `now` (seconds, monotonic)."""
        step = read_step(line)
        if step is None:
            return [*self.flush(), line]
        self._last, self._seen = step, now
        if self._shown is not None and now - self._shown[0] < EVERY:
            return []
        return self.flush()

    def flush(self) -> list[str]:
        """The step that has not been shown, for an end or a pause."""
        if self._last is None:
            return []
        step, self._last = self._last, None
        number, before = step["step"], self._shown
        self._shown = self._seen, number
        passed = 0.0 if before is None else self._seen - before[0]
        speed = 0.0 if before is None or passed < EVERY / 2 else (number - before[1]) / passed
        return [describe(step, speed)]


def read_step(line: str) -> Mapping[str, Any] | None:
    """The object of a line that tells of a step: a JSON object whose `step` is a number; None for any other line."""
    if not line.startswith("{") or len(line) > _LONGEST:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event", "step") != "step":
        return None
    step = found.get("step")
    return found if isinstance(step, int) and _is_number(step) else None


def describe(step: Mapping[str, Any], speed: float) -> str:
    """`step 812, loss 0.1234, world of 3, 12.4 steps/s`."""
    parts = [f"step {step['step']}"]
    if _is_number(step.get("epoch")):
        parts.insert(0, f"epoch {step['epoch']:g}")
    numbers = [(name, value) for name, value in step.items() if name not in _HIDDEN and _is_number(value)]
    parts += [f"{name} {value:.4g}" for name, value in numbers[:_MOST]]
    worlds = [step[name] for name in _WORLD if _is_number(step.get(name))]
    parts += [f"world of {worlds[0]:g}"] if worlds else []
    parts += [f"{speed:.3g} steps/s"] if speed > 0 else []
    return ", ".join(parts)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < _LARGEST)
