"""Whether the learning rates of all ranks will be the same: what a scheduler's state does not tell.

torch keeps no function in the state of a LambdaLR. A joiner makes its own, for example from `len(loader)`, which is
another number in another world: ranks with different learning rates train different models. So the values of these
functions are compared, at some steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_STEPS = (1, 2, 5, 10, 50, 100, 1_000, 10_000, 100_000)

DIFFERENT = (
    "the functions of a scheduler (LambdaLR) give other learning rates here than on the ranks that train already: they"
    " must not depend on the world, as len(loader) does with a micro_batch_size. The steps of an epoch are"
    " math.ceil(len(dataset) / global_batch_size) in a world of any size."
)


def evaluate(extras: Iterable[Any]) -> list[float | None]:
    """The values of all functions of the schedulers among these, and of those that they consist of; None: an error."""
    found: list[float | None] = []
    for extra in extras:
        parts = getattr(extra, "_schedulers", ())
        found += evaluate(parts) if isinstance(parts, (list, tuple)) else []
        functions = getattr(extra, "lr_lambdas", ())
        found += [_call(function, step) for function in functions for step in _STEPS]
    return found


def _call(function: Callable[[int], Any], step: int) -> float | None:
    try:
        return float(function(step))
    except Exception:
        return None
