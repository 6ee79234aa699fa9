"""Marks for tests of what not every version of torch can do."""

from __future__ import annotations

import pytest

from elasticjob.torchcompat import sharding

needs_fsdp_on_cpu = pytest.mark.skipif(
    not sharding.HAS_FSDP_ON_CPU, reason="FSDP2 of this torch does not work on the CPU"
)
