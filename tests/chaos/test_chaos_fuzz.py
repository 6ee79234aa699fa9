"""Random ElasticJobs: short form, one seed. `make chaos` creates hundreds."""

from __future__ import annotations

import pytest

from chaos import fuzz
from chaos.lab import Lane

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(400)]


def test_jobs_at_random(lanes: list[Lane]) -> None:
    report = fuzz.run(lanes[0], 6, 60)
    assert not report.violations, "\n\n".join(report.violations)
    assert report.faults > 5, "some are wrong"
