"""How often a tensor was changed in place."""

from __future__ import annotations

import torch

from elasticjob.torchcompat.probe import Probe


def count_changes(tensor: torch.Tensor) -> int | None:
    """A number that grows with each change in place; None where torch does not count, as for inference tensors."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return None


PROBES = (
    Probe(
        "Pending.wait() finds a buffer that was changed too early",
        ("torch.Tensor._version",),
        "such a mistake of a script is not reported",
        lambda: count_changes(torch.zeros(1)) is not None,
    ),
)
