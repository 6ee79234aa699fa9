"""Kubernetes quantities, read and written."""

from __future__ import annotations

from decimal import Decimal

import pytest

from elasticjob_operator import quantity


@pytest.mark.parametrize(
    ("text", "amount", "written"),
    [
        ("500m", "0.5", "500m"),
        (2, "2", "2"),
        ("1.5", "1.5", "1500m"),
        ("16Gi", str(16 * 2**30), str(16 * 2**30)),
        ("3k", "3000", "3000"),
        ("1E", str(10**18), str(10**18)),
        ("1e3", "1000", "1000"),
        ("0.0001", "0.0001", "1m"),
    ],
)
def test_quantities(text: object, amount: str, written: str) -> None:
    assert quantity.parse(text) == Decimal(amount)
    assert quantity.write(quantity.parse(text)) == written


@pytest.mark.parametrize("text", ["", "much", "NaN", "Infinity", "1Xi", None])
def test_what_is_not_a_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


def test_a_limit_is_the_request_if_none_is_set() -> None:
    container = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}}
    assert quantity.find_requests(container) == {"cpu": "1", "memory": "1Gi"}
    assert quantity.find_requests({"name": "w"}) == {}
