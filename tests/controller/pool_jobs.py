"""Requests for the tests of the pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticjob_operator.pool.throughput import Model
from elasticjob_operator.pool.values import Curve, Request, measure


def make_request(
    key: str, shared: float = 0.95, *, low: int = 1, most: int = 16, devices: int = 1, **changes: Any
) -> Request:
    """A job whose step of one second is divided by its pods for this share of it; nothing about it is in doubt."""
    sizes = changes.pop("sizes", None) or tuple(range(low, most + 1))
    seconds = [shared / size + 1 - shared for size in sizes]
    unit = seconds[0] * sizes[0] * devices
    return replace(Request(key, Curve(sizes, tuple(unit / s for s in seconds), devices)), **changes)


def learn_request(key: str, model: Model, sizes: tuple[int, ...], devices: int = 1, **changes: Any) -> Request:
    """A job of which only this model is known."""
    return replace(Request(key, measure(model, sizes, devices), model=model), **changes)
