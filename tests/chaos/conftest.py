"""Fixtures of the chaos tests: operators that fork, and lanes that several scenarios share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.lab import Lane, Zygote, make_lane
from elasticjob_devcluster import Cluster
from operator_fixture import install_crd


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def lanes(cluster: Cluster, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[Lane]:
    """Two lanes: the short run is sized for two cores."""
    install_crd(cluster)
    directory = tmp_path_factory.mktemp("lanes")
    return [make_lane(cluster, zygote, directory) for _ in range(2)]
