"""Faulty nodes, by the faults that all jobs had and by conditions of nodes: what new pods avoid, and others hear."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from elasticjob_operator import turn
from elasticjob_operator.api import names
from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.model.observe import Node
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import MERGE_PATCH, STRATEGIC_PATCH, path_of

logger = logging.getLogger(__name__)

_SECONDS: Final = 5.0
_MOST_BROKEN: Final = 50  # every pod names them


@dataclass(frozen=True, slots=True)
class Faulty:
    """The nodes that new pods of a job should avoid."""

    known: tuple[str, ...]  # by the cluster's conditions, and by the jobs of its namespace
    suspected: tuple[str, ...]  # by those of others


class NodeMemory:
    """Looks at the whole cache at most once in a few seconds, in a thread: tenants have as many jobs as they like."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._at: float | None = None
        self._broken: frozenset[str] = frozenset()
        self._suspects = faulty_nodes.Suspects({}, ())
        self._looking = asyncio.Lock()

    async def find(self, namespace: str, now: float) -> Faulty:
        """The nodes that new pods in this namespace should avoid. `now` is in seconds since the epoch."""
        if self._is_old(now) and (self._at is None or not self._looking.locked()):
            async with self._looking:
                if self._is_old(now):
                    await self._look(now)
        known = self._broken | {*self._suspects.by_namespace.get(namespace, ())}
        return Faulty(tuple(sorted(known)), tuple(node for node in self._suspects.agreed if node not in known))

    def _is_old(self, now: float) -> bool:
        return self._at is None or not 0 <= now - self._at < _SECONDS

    async def _look(self, now: float) -> None:
        """What was known before counts until it is done, but for the first time: it takes as long as tenants like."""
        broken = sorted(node.name for node in self._cache.nodes.values() if node.problem)
        suspects = await find_suspects(self._cache, now)
        self._broken, self._suspects, self._at = frozenset(broken[:_MOST_BROKEN]), suspects, now


async def find_suspects(cache: Cache, now: float) -> faulty_nodes.Suspects:
    """The nodes with faults of jobs that are not forgotten yet.

    What other controllers write, such as MultiKueue, may be about another cluster with nodes of the same names.
    """
    told = [
        (f"{namespace}/{name}", faults)
        async for (namespace, name), (job, _) in turn.one_by_one([*cache.jobs.items()])
        if (faults := job.status.node_faults) and names.is_ours(job.manager)
    ]
    if not told:
        return faulty_nodes.Suspects({}, ())
    made = {node.name: node.created for node in cache.nodes.values()}

    def counts(name: str, at: float) -> bool:
        """An operator that may not see nodes cannot tell which are there."""
        return not made or (name in made and made[name] <= at)

    return await asyncio.to_thread(faulty_nodes.find_suspects, told, now, counts)


class NodeMark(ABC):
    """A mark of the nodes that two namespaces call faulty, for others than our jobs."""

    what: ClassVar[str]

    @abstractmethod
    def is_on(self, node: Node) -> bool: ...

    @abstractmethod
    async def write(self, api: Api, name: str, wanted: bool, now: float) -> None: ...


class NodeMarks:
    """Keeps the marks that the administrator allows."""

    def __init__(self, api: Api, cache: Cache, marks: Sequence[NodeMark]) -> None:
        self._api = api
        self._cache = cache
        self._marks = marks

    async def run(self) -> None:
        """Renew the marks every few seconds. Call it only as the leader."""
        while True:
            await self.renew(self._api.clock())
            await asyncio.sleep(_SECONDS)

    async def renew(self, now: float) -> None:
        """Mark the nodes that two namespaces call faulty, and no others. `now` is in seconds since the epoch."""
        agreed = (await find_suspects(self._cache, now)).agreed
        for mark in self._marks:
            known = {node.name: mark.is_on(node) for node in self._cache.nodes.values()}
            for name, wanted in faulty_nodes.choose_marks(known, agreed).items():
                try:
                    await mark.write(self._api, name, wanted, now)
                    logger.info("node %s: %s %s", name, "has" if wanted else "lost", mark.what)
                except ApiError as error:  # the node is gone, or somebody else has written: the next round looks again
                    logger.warning("node %s: %s was not written: %s", name, mark.what, error)


class NodeTaint(NodeMark):
    """The taint by which other pods than ours prefer other nodes too."""

    what = f"the taint {names.TAINT_FAULTY}"

    def is_on(self, node: Node) -> bool:
        return node.tainted

    async def write(self, api: Api, name: str, wanted: bool, now: float) -> None:
        path = path_of("v1", "nodes", name=name)
        node = await api.request("GET", path)
        taints = faulty_nodes.with_taint(node["spec"].get("taints") or (), wanted)
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await api.request("PATCH", path, {"metadata": version, "spec": {"taints": taints}}, content_type=MERGE_PATCH)


class NodeCondition(NodeMark):
    """The condition that a controller which repairs nodes can act on."""

    what = f"the condition {names.CONDITION_FAULTY}"

    def is_on(self, node: Node) -> bool:
        return node.reported

    async def write(self, api: Api, name: str, wanted: bool, now: float) -> None:
        path = path_of("v1", "nodes", name=name, sub="status")
        body = {"status": {"conditions": [faulty_nodes.build_condition(wanted, now)]}}
        await api.request("PATCH", path, body, content_type=STRATEGIC_PATCH)
