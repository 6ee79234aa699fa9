"""Kubernetes quantities (`500m`, `8Gi`, `1e3`) as exact numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final

_SUFFIXES: Final = {
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def parse(value: object) -> Decimal:
    """Parse a quantity. Raises ValueError if it is not one."""
    text = str(value).strip()
    suffix = next((s for s in sorted(_SUFFIXES, key=len, reverse=True) if text.endswith(s)), "")
    try:
        number = Decimal(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        raise ValueError(f"{text} is not a quantity") from None
    if not number.is_finite():
        raise ValueError(f"{text} is not a quantity")
    return number


def write(amount: Decimal) -> str:
    """Write an amount as a whole number, or in thousandths, rounded up."""
    whole = amount.to_integral_value()
    return str(int(whole)) if whole == amount else f"{int((amount * 1000).to_integral_value(ROUND_CEILING))}m"


def find_requests(container: Mapping[str, Any]) -> dict[str, object]:
    """The resources that a container requests, as written; a limit is the request if none is set."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
