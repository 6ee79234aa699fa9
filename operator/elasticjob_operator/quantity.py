"""Kubernetes quantities (`500m`, `8Gi`, `1e3`) as exact numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from elasticjob_operator import numerals

_SUFFIXES: Final = {
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
LEAST: Final = Decimal("1e-9")  # Kubernetes counts in whole billionths, and up to what 64 bits hold
END: Final = Decimal(2**63)


def parse(value: object) -> Decimal:
    """Parse a quantity: 0, or at least 1n and less than 8Ei. Raises ValueError for anything else, in constant time."""
    text, factor = value, Decimal(1)
    if isinstance(value, str) and len(value) <= numerals.LONGEST:
        suffix = next((s for s in (value[-2:], value[-1:]) if s in _SUFFIXES), "")
        text, factor = value.removesuffix(suffix), _SUFFIXES.get(suffix, factor)
    number = numerals.read_decimal(text)
    if number is None:
        raise ValueError(f"{numerals.shorten(value)} is not a quantity")
    # The exponent first: what is far out of range must not be computed with.
    if number and not (-30 < number.adjusted() < 30 and LEAST <= number * factor < END):
        raise ValueError(f"{numerals.shorten(value)} is not a quantity of 0, or from 1n to less than 8Ei")
    return number * factor if number else Decimal(0)


def write(amount: Decimal) -> str:
    """Write an amount as a whole number, or in thousandths, rounded up."""
    whole = amount.to_integral_value()
    return str(int(whole)) if whole == amount else f"{int((amount * 1000).to_integral_value(ROUND_CEILING))}m"


def find_request(container: Mapping[str, Any], resource: str) -> object:
    """What a container requests of one resource, as written; None if nothing."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return requests.get(resource, limits.get(resource))


def find_requests(container: Mapping[str, Any]) -> dict[str, object]:
    """The resources that a container requests, as written; a limit is the request if none is set."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def add_requests(containers: Iterable[Mapping[str, Any]]) -> dict[str, Decimal]:
    """What containers request together, by resource. Raises ValueError if one is no quantity."""
    total: dict[str, Decimal] = {}
    for container in containers:
        for name, amount in find_requests(container).items():
            total[name] = total.get(name, Decimal(0)) + parse(amount)
    return total
