"""The counter of in-place changes of a tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from elasticjob.torchcompat.probe import Probe

_read_version: operator.attrgetter[int] = operator.attrgetter("_version")


def count_changes(tensor: torch.Tensor) -> int | None:
    """A number that grows with each in-place change; None if torch does not count, as for inference tensors."""
    try:
        return int(tensor._version)
    except (AttributeError, RuntimeError):
        return None


def count_all_changes(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """`count_changes` of each; faster for many."""
    try:
        return list(map(_read_version, tensors))
    except (AttributeError, RuntimeError):  # of one of them
        return [count_changes(one) for one in tensors]


PROBES = (
    Probe(
        "Pending.wait() and Horovod's optimizers find a buffer that was changed too early",
        ("torch.Tensor._version",),
        "such a mistake of a script is not reported",
        lambda: count_changes(torch.zeros(1)) is not None,
    ),
)
