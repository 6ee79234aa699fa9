"""How long to wait before the next try: the operator's only formula for it.

Pure but for the spreading, which keeps replicas from trying in step.
"""

from __future__ import annotations

import random

SPREAD = 0.2


def find_pause(failures: int, *, first: float = 0.2, most: float = 30.0, asked: float | None = None) -> float:
    """Seconds before the next try after so many failures in a row; `asked` is what the server asked for."""
    if asked is not None:
        return asked
    return min(most, first * 2.0 ** min(max(0, failures - 1), 30))


def spread(pause: float) -> float:
    return pause * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 - spreads load
