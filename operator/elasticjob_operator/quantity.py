"""Kubernetes quantities (`500m`, `8Gi`, `1e3`) as exact numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from elasticjob_operator import numerals

_SUFFIXES: Final = {
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
Amounts = dict[str, Decimal]  # by resource
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


def find_requests(container: Mapping[str, Any]) -> dict[str, object]:
    """The resources that a container (or a whole pod) requests, as written; a limit is the request if none is set."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def add_pod_requests(pod_spec: Mapping[str, Any], resource: str | None = None) -> Amounts:
    """What a pod requests of each resource, or of this one, as the scheduler counts it, without amounts of 0.

    That is the most that runs at a time: all containers and native sidecars, or an init container beside the sidecars
    before it. What the pod requests as a whole counts instead; its overhead comes on top. Raises ValueError if an
    amount is no quantity.
    """
    most: Amounts = {}
    total: Amounts = {}  # the sidecars so far, and then all that runs to the end
    for container in pod_spec.get("initContainers") or ():
        own = _read(container, resource)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
        else:
            for name, amount in own.items():
                most[name] = max(most.get(name, Decimal(0)), total.get(name, Decimal(0)) + amount)
    for container in pod_spec.get("containers") or ():
        if container.get("resources"):
            _add(total, _read(container, resource))
    for name, amount in most.items():
        total[name] = max(total.get(name, Decimal(0)), amount)
    if pod_spec.get("resources"):
        total.update(_read(pod_spec, resource))
    if overhead := pod_spec.get("overhead"):
        _add(total, _read({"resources": {"requests": overhead}}, resource))
    return {name: amount for name, amount in total.items() if amount}


def _read(container: Mapping[str, Any], resource: str | None) -> Amounts:
    if resource is None:
        return {name: parse(amount) for name, amount in find_requests(container).items()}
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        if resource in amounts:
            return {resource: parse(amounts[resource])}
    return {}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount
