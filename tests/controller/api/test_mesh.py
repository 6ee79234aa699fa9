"""Table of layouts: how many pods hold whole copies of a model that is cut over a mesh, and where they are."""

from __future__ import annotations

import pytest

from controller.builders import make_spec
from elasticjob_operator import api
from elasticjob_operator.api.mesh import find_cut


def make_mesh(text: str) -> list[api.MeshDimension]:
    """From "pp=2 dp tp=2"."""
    return [
        api.MeshDimension(name=name, size=int(size) if size else None)
        for name, _, size in (word.partition("=") for word in text.split())
    ]


@pytest.mark.parametrize(
    ("mesh", "nproc", "layout"),
    [
        pytest.param("dp", 8, api.Layout(1, 1, 1), id="every rank has a copy"),
        pytest.param("dp tp=2", 1, api.Layout(2, 1, 2), id="two neighbours"),
        pytest.param("dp pp=2 tp=2", 1, api.Layout(4, 1, 4), id="four neighbours"),
        pytest.param("pp=2 dp tp=2", 1, api.Layout(4, 2, 2), id="twice two neighbours, as torchtitan and Megatron do"),
        pytest.param("pp=2 dp", 1, api.Layout(2, 2, 1), id="two that are far from each other"),
        pytest.param("replicate shard=8", 8, api.Layout(1, 1, 1), id="a copy in each pod"),
        pytest.param("replicate shard=4", 8, api.Layout(1, 1, 1), id="two copies in each pod"),
        pytest.param("replicate shard=16", 8, api.Layout(2, 1, 2), id="a copy in two pods"),
        pytest.param("dp tp=12", 8, api.Layout(3, 1, 3), id="two copies in three pods"),
        pytest.param("pp=4 dp tp=8", 8, api.Layout(4, 4, 1), id="a stage in each pod"),
        pytest.param("pp=2 dp tp=4", 8, api.Layout(1, 2, 1), id="in one pod both stages of one, in two those of two"),
    ],
)
def test_the_pods_of_a_copy(mesh: str, nproc: int, layout: api.Layout) -> None:
    assert find_cut(make_mesh(mesh), nproc).layout == layout


@pytest.mark.parametrize(
    ("mesh", "nproc", "pods", "parts"),
    [
        pytest.param("dp", 2, 2, [{0}, {0}], id="every rank has all"),
        pytest.param("dp tp=2", 1, 4, [{0}, {1}, {0}, {1}], id="neighbours"),
        pytest.param("pp=2 dp tp=2", 1, 8, [{0}, {1}, {0}, {1}, {2}, {3}, {2}, {3}], id="stages"),
        pytest.param("pp=2 dp tp=4", 8, 1, [set(range(8))], id="both stages in one pod"),
        pytest.param("pp=2 dp tp=4", 8, 2, [set(range(4)), set(range(4, 8))], id="a stage in each"),
        pytest.param("dp tp=3", 2, 3, [{0, 1}, {2, 0}, {1, 2}], id="two copies in three pods"),
    ],
)
def test_the_parts_that_a_pod_has(mesh: str, nproc: int, pods: int, parts: list[set[int]]) -> None:
    cut = find_cut(make_mesh(mesh), nproc)
    assert [cut.find_parts(pod, pods) for pod in range(pods)] == parts


GPUS = {"spec": {"containers": [{"name": "t", "image": "a/b:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}
COPY = [{"name": "pp", "size": 4}, {"name": "dp"}, {"name": "tp", "size": 8}]


@pytest.mark.parametrize(
    ("min", "max", "expected"),
    [
        pytest.param(1, 16, 4, id="one copy at least"),
        pytest.param(4, 16, 4, id="one copy"),
        pytest.param(5, 16, 8, id="whole copies"),
        pytest.param(5, 7, 5, id="no whole copy: no size is legal"),
    ],
)
def test_the_least_number_of_pods_has_whole_copies(min: int, max: int, expected: int) -> None:
    spec = make_spec(min, max, elasticPolicy={"mesh": COPY}, template=GPUS)
    assert spec.min_replicas == expected


def test_without_bounds_there_is_one_size() -> None:
    spec = api.parse_spec({"replicas": 8, "elasticPolicy": {"mesh": COPY}, "template": GPUS})
    assert (spec.min_replicas, spec.max_replicas) == (8, 8)
