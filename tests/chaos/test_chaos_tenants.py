"""Hostile tenants, short form: two replicas, every hostile object once, lost Leases, hostile pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import tenants
from elasticjob_devcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(400)]


def test_tenants_harm_nobody_else(cluster_factory: Callable[..., Cluster], tmp_path: Path) -> None:
    plan = tenants.Plan(seed=6, quiet_rounds=1, hostile_seconds=0.2, greedy=6)
    report = tenants.run(plan, tmp_path, cluster_factory)
    assert not report.violations, "\n".join(report.violations[:20])
    assert report.more["writes"] > 50, "the replicas acted"
    assert report.more["leaseFaults"] > 0, "a Lease was touched"
    assert len(report.more["objects"]) == 7, "objects of every kind were made"
