"""The catalogue of versions, row by row."""

from __future__ import annotations

import pytest

from elasticjob_operator.model import served
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.values import Kind


@pytest.mark.parametrize("kind", list(served.VERSIONS))
def test_each_row_uses_the_best_version_that_is_served(kind: str) -> None:
    best, *others = served.VERSIONS[kind]
    assert Served(frozenset({best, *others})).version_of(kind) == best
    for other in others:
        assert Served(frozenset({other})).version_of(kind) == other
    assert Served().version_of(kind) == best, "nothing is known: the API server's answer tells"
    assert Served(frozenset({best})).has(kind)
    assert not Served(frozenset({"apps/v1"})).has(kind)


def test_every_row_is_a_kind_that_is_written() -> None:
    assert set(served.VERSIONS) <= {kind.value for kind in Kind}


def test_the_groups_of_an_api_server() -> None:
    listed = {
        "groups": [
            {
                "name": "autoscaling",
                "versions": [{"groupVersion": "autoscaling/v1"}, {"groupVersion": "autoscaling/v2"}],
            }
        ]
    }
    found = served.read_groups(listed)
    assert found.version_of("HorizontalPodAutoscaler") == "autoscaling/v2"
    assert not found.has("PodDisruptionBudget")
    assert found.list_versions("autoscaling") == ["v1", "v2"]
    assert found.list_versions("auto") == []
