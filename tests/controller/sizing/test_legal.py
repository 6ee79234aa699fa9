"""Table of legal sizes: the largest world that may be formed from a number of pods."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from elasticjob_operator.sizing.legal import Sizes, describe_none, sizes_of


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
        pytest.param(Sizes(4, 16, 4, values=(4, 6, 8, 10)), 11, 8, id="values-of-whole-copies"),
    ],
)
def test_legal_sizes(sizes: Sizes, available: int, legal: int) -> None:
    assert sizes.legal(available) == legal


COPY = [{"name": "dp"}, {"name": "tp", "size": 4}]
BOUNDS = "from 5 (minReplicas, or else replicas) to 6 (replicas): change one of them"


@pytest.mark.parametrize(
    ("elastic", "expected"),
    [
        pytest.param({}, list(range(3, 14)), id="any"),
        pytest.param({"replicaIncrementStep": 5}, [3, 8, 13], id="steps"),
        pytest.param({"replicaDiscreteValues": [8, 2, 4, 16]}, [4, 8], id="values"),
        pytest.param({"mesh": COPY}, [4, 8, 12], id="whole copies"),
        pytest.param({"mesh": COPY, "replicaDiscreteValues": [4, 6, 12]}, [4, 12], id="values that are whole copies"),
    ],
)
def test_all_legal_sizes(elastic: dict[str, object], expected: list[int]) -> None:
    sizes = sizes_of(make_spec(3, 13, elasticPolicy=elastic), 13)
    assert list(sizes.list_all()) == expected
    assert [sizes.legal(size) for size in expected] == expected
    assert [sizes.at_least(size) for size in expected] == expected
    assert sizes.at_least(expected[0] - 1) == expected[0]
    assert (sizes.legal(2), sizes.legal(99)) == (0, expected[-1])


@pytest.mark.parametrize(
    ("elastic", "expected"),
    [
        ({"replicaDiscreteValues": [2, 7]}, f"spec.elasticPolicy.replicaDiscreteValues has no size {BOUNDS}"),
        (
            {"mesh": COPY},
            f"whole copies of spec.elasticPolicy.mesh need a multiple of 4 pods, and there is none {BOUNDS}",
        ),
        (
            {"mesh": COPY, "replicaDiscreteValues": [6]},
            "whole copies of spec.elasticPolicy.mesh need a multiple of 4 pods, and"
            f" spec.elasticPolicy.replicaDiscreteValues has none {BOUNDS}",
        ),
    ],
)
def test_no_size_is_legal(elastic: dict[str, object], expected: str) -> None:
    spec = make_spec(5, 7, replicas=6, elasticPolicy=elastic)
    assert sizes_of(spec, spec.wanted).legal(spec.wanted) == 0
    assert describe_none(spec) == expected
