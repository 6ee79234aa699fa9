"""Table of legal sizes: the largest world that may be formed from a number of pods."""

from __future__ import annotations

import pytest

from elasticjob_operator.sizing.legal import Sizes


@pytest.mark.parametrize(
    ("sizes", "available", "legal"),
    [
        pytest.param(Sizes(2, 4), 1, 0, id="below-min"),
        pytest.param(Sizes(2, 4), 2, 2, id="exactly-min"),
        pytest.param(Sizes(2, 4), 3, 3, id="between"),
        pytest.param(Sizes(2, 4), 4, 4, id="exactly-wanted"),
        pytest.param(Sizes(2, 4), 9, 4, id="above-wanted"),
        pytest.param(Sizes(1, 4, failed=(3,)), 3, 2, id="failed"),
        pytest.param(Sizes(1, 4, failed=(2, 3)), 3, 1, id="two-failed"),
        pytest.param(Sizes(3, 4, failed=(3,)), 3, 0, id="the-least-failed"),
        pytest.param(Sizes(1, 8, values=(2, 4, 8), failed=(4,)), 5, 2, id="a-value-failed"),
        pytest.param(Sizes(2, 8, 2, failed=(6,)), 7, 4, id="a-step-failed"),
        pytest.param(Sizes(2, 8, step=3), 7, 5, id="step"),
        pytest.param(Sizes(2, 8, step=3), 8, 8, id="step-exact"),
        pytest.param(Sizes(2, 8, values=(1, 4, 8)), 7, 4, id="values"),
        pytest.param(Sizes(2, 8, values=(2, 4, 8)), 8, 8, id="values-exact"),
        pytest.param(Sizes(2, 8, values=(2, 4, 8)), 2, 2, id="values-min"),
        pytest.param(Sizes(2, 8, values=(1, 4, 8)), 3, 0, id="values-below-min"),
        pytest.param(Sizes(2, 6, values=(8,)), 9, 0, id="values-above-wanted"),
    ],
)
def test_legal_sizes(sizes: Sizes, available: int, legal: int) -> None:
    assert sizes.legal(available) == legal
