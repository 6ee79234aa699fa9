"""What a queue has admitted of a job, whichever queue it is: pods by their replica indices. Pure.

A job without a queue has no `Quota`. One with a queue runs only pods that a share covers.
"""

from __future__ import annotations

import bisect
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
    shares: tuple[Share, ...] = ()  # in the order of their indices, of which none is in two
    is_sent_on: bool = False  # once it is admitted, the job runs in another cluster, which says how it is
    cluster: str = ""  # the name of that cluster, once it is known

    @property
    def pods(self) -> int:
        """How many pods may run."""
        return sum(share.count for share in self.shares)

    def covers(self, index: int) -> bool:
        return self._find(index) is not None

    def placement(self, index: int) -> Placement | None:
        share = self._find(index)
        return share.placement if share is not None else None

    def _find(self, index: int) -> Share | None:
        at = bisect.bisect_right(self.shares, index, key=lambda share: share.first) - 1
        return self.shares[at] if at >= 0 and index in self.shares[at].indices else None

    def open_indices(self, below: int) -> Iterator[int]:
        """The indices below this one that new pods may have, the lowest first."""
        for share in self.shares:
            if share.placement is not None:
                yield from range(share.first, min(share.first + share.count, below))
