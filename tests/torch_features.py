"""Marks for tests of what not every version of torch can do."""

from __future__ import annotations

import pytest

from elasticjob import torchcompat

needs_fsdp_on_cpu = pytest.mark.skipif(
    not torchcompat.HAS_FSDP_ON_CPU, reason="FSDP2 of this torch does not work on the CPU"
)
