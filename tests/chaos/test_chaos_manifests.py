"""Any manifest, any cluster: short form, one seed. `make chaos` applies thousands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import manifest_texts, manifests
from elasticjob_devcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(400)]


def test_jobs_as_people_write_them(cluster_factory: Callable[..., Cluster], tmp_path: Path) -> None:
    report = manifests.run(5, 12, tmp_path, texts=0, start=cluster_factory, watch_seconds=25.0)
    if report.violations:
        pytest.fail("\n\n".join(report.violations), pytrace=False)
    assert report.faults, "some do not train"


@pytest.mark.long
def test_manifests_as_people_have_written_them(cluster_factory: Callable[..., Cluster], tmp_path: Path) -> None:
    report = manifests.run(6, len(manifest_texts.TEXTS), tmp_path, start=cluster_factory)
    if report.violations:
        pytest.fail("\n\n".join(report.violations), pytrace=False)
