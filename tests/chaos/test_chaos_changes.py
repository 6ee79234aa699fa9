"""Other disturbances of running jobs: random changes, expired certificates, and sessions under all of them.

Short forms; `make chaos` has the long ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import certificates, changes, clustersessions
from chaos.lab import Lane
from chaos.trials import run_trials
from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, install_crd

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(400)]


def test_a_running_job_is_changed_at_random(lanes: list[Lane]) -> None:
    report = run_trials("changes-short", 1, lanes, changes.make_trials(1, 4))
    assert not report.violations, "\n\n".join(report.violations)
    assert report.faults > 16, "most changes were taken"


def test_a_session_under_the_whole_operator(lanes: list[Lane]) -> None:
    report = run_trials("clustersessions-short", 500, lanes[:1], clustersessions.make_trials(500, 1, length=3))
    assert not report.violations, "\n\n".join(report.violations)


def test_the_hubs_certificate_ran_out(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    install_crd(cluster)
    certificates.the_hubs_ran_out(cluster, Jobs(cluster, namespace), tmp_path)
