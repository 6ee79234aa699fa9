"""One cluster whose API server writes down every request, for the tests of this folder that read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elasticjob_devcluster import Cluster, NodeSpec, Tuning


@pytest.fixture(scope="package")
def audited(cluster_factory: Callable[..., Cluster]) -> Cluster:
    return cluster_factory(nodes=[NodeSpec("node-0"), NodeSpec("node-1")], tuning=Tuning(audit=True))
