"""The nodes that new pods should avoid, by the faults that all jobs had and by conditions of the nodes."""

from __future__ import annotations

from typing import Final

from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.kube.cache import Cache

_SECONDS: Final = 5.0
_MOST_BROKEN: Final = 50  # every pod names them


class NodeMemory:
    """Looks at the whole cache at most once in a few seconds."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._at: float | None = None
        self._nodes: tuple[str, ...] = ()

    def find(self, now: float) -> tuple[str, ...]:
        """The nodes that new pods of any job should avoid. `now` is in seconds since the epoch."""
        if self._at is None or not 0 <= now - self._at < _SECONDS:
            told = ((f"{ns}/{name}", job.status.node_faults) for (ns, name), (job, _) in self._cache.jobs.items())
            broken = {node.name for node in self._cache.nodes.values() if node.problem}
            faulty = faulty_nodes.names_of(faulty_nodes.remember(told, now))
            self._nodes, self._at = tuple(sorted({*faulty, *sorted(broken)[:_MOST_BROKEN]})), now
        return self._nodes
