"""The catalogue of versions, row by row."""

from __future__ import annotations

import pytest

from elasticjob_operator.model import served
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.values import Kind
from operator_fixture import ROOT


@pytest.mark.parametrize("kind", list(served.VERSIONS))
def test_each_row_uses_the_best_version_that_is_served(kind: str) -> None:
    best, *others = served.VERSIONS[kind]
    assert Served(frozenset({best, *others})).version_of(kind) == best
    for other in others:
        assert Served(frozenset({other})).version_of(kind) == other
    assert Served().version_of(kind) == best, "nothing is known: the API server's answer tells"
    assert Served(frozenset({best})).has(kind)
    assert not Served(frozenset({"apps/v1"})).has(kind)


def test_the_documentation_shows_every_row() -> None:
    page = (ROOT / "docs/install.md").read_text()
    assert [v for versions in served.VERSIONS.values() for v in versions if f"`{v}`" not in page] == []


def test_every_row_is_a_kind_that_is_written() -> None:
    assert set(served.VERSIONS) <= {kind.value for kind in Kind}


@pytest.mark.parametrize(
    ("kinds", "is_kept"),
    [
        pytest.param(["PriorityClass"], False, id="Kubernetes 1.20"),
        pytest.param(["Workload", "PodGroup"], True, id="1.37"),
    ],
)
def test_a_version_that_once_had_other_kinds_is_looked_into(kinds: list[str], is_kept: bool) -> None:
    version = "scheduling.k8s.io/v1beta1"
    listed = {"resources": [{"kind": kind} for kind in kinds]}
    found = served.keep_listed(Served(frozenset({version, "policy/v1"})), version, listed, "PodGroup")
    assert found.has("PodGroup") is is_kept
    assert found.has("PodDisruptionBudget")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param({"major": "1", "minor": "36"}, True, id="1.36"),
        pytest.param({"major": "1", "minor": "37+"}, True, id="a cloud's 1.37"),
        pytest.param({"major": "1", "minor": "35"}, False, id="1.35"),
        pytest.param({"major": "", "minor": ""}, False, id="no version"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_image_volumes_are_used_from_1_36_on(told: dict[str, str], expected: bool) -> None:
    assert Served(version=served.read_version(told)).has_image_volumes is expected


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
