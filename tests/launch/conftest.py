"""Whether a local cluster can run here; otherwise its tests are skipped, with the reason."""

from __future__ import annotations

import os

import pytest

from elasticjob_devcluster import BinariesUnavailable
from elasticjob_devcluster.controlplane import binaries
from elasticjob_operator.launch.local import find_missing


@pytest.fixture(scope="session")
def local_programs() -> None:
    """What a local cluster needs is there."""
    missing = find_missing()
    if missing:
        pytest.skip(f"no local cluster: {' and '.join(missing)}")
    try:
        binaries.find_or_build(binaries.SERVERS)
    except BinariesUnavailable as error:
        if os.environ.get("ELASTICJOB_REQUIRE_CLUSTER"):  # where a skip would hide that nothing was tested
            raise
        pytest.skip(f"no local cluster: {error}")
