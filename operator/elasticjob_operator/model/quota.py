"""What a queue has admitted of a job, whichever queue it is: pods by their replica indices. Pure.

A job without a queue has no `Quota`. One with a queue runs only pods that a share covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Placement:
    """What pods carry that use a share: where they may run, and what ties them to it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...] = ()
    gates: tuple[str, ...] = ()  # names of scheduling gates that the queue removes


@dataclass(frozen=True, slots=True)
class Share:
    """Quota for the pods with the indices from `first` on."""

    first: int
    count: int
    placement: Placement | None = None  # None: for the pods that are there, and no new ones

    @property
    def indices(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Quota:
    """`is_admitted`: whether the job may run at all; `reason` and `message` are those of its condition."""

    is_admitted: bool
    reason: str
    message: str
    shares: tuple[Share, ...] = ()
    is_sent_on: bool = False  # once it is admitted, the job runs in another cluster, which says how it is

    @property
    def pods(self) -> int:
        """How many pods may run."""
        return sum(share.count for share in self.shares)

    def covers(self, index: int) -> bool:
        return any(index in share.indices for share in self.shares)

    def placement(self, index: int) -> Placement | None:
        return next((share.placement for share in self.shares if index in share.indices), None)

    def open_indices(self, below: int) -> Iterator[int]:
        """The indices below this one that new pods may have, the lowest first."""
        for share in sorted(self.shares, key=lambda share: share.first):
            if share.placement is not None:
                yield from range(share.first, min(share.first + share.count, below))
