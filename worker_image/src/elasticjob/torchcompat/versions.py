"""The counter of in-place changes of a tensor."""

from __future__ import annotations

import torch

from elasticjob.torchcompat.probe import Probe


def count_changes(tensor: torch.Tensor) -> int | None:
    """A number that grows with each in-place change; None if torch does not count, as for inference tensors."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return None


PROBES = (
    Probe(
        "Pending.wait() and Horovod's optimizers find a buffer that was changed too early",
        ("torch.Tensor._version",),
        "such a mistake of a script is not reported",
        lambda: count_changes(torch.zeros(1)) is not None,
    ),
)
