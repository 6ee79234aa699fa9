"""Follows Kueue's objects into a store for as long as Kueue is served, and says why where they cannot be followed."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence

from elasticjob_operator.api import names as ours
from elasticjob_operator.integrations.kueue import names
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model.served import read_groups
from elasticjob_operator.rest.request import path_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks whether Kueue is served by now
SELECTOR = f"{ours.LABEL_APP}={ours.LABEL_APP_VALUE}"


class Follower:
    """`on_change` is called whenever `missing` has changed."""

    def __init__(
        self, api: Api, namespaces: Sequence[str], intake: Intake, store: Store, on_change: Callable[[], None]
    ) -> None:
        self._api = api
        self._namespaces = namespaces or ("",)
        self._intake = intake
        self._store = store
        self._on_change = on_change
        self.has_looked = asyncio.Event()  # it is known what there is, or that it cannot be known now
        self.missing = "the operator has not looked yet"  # why there is no Kueue; "" while all of it has been read

    async def run(self) -> None:
        """Follows Workloads and flavors for ever, from when they are served."""
        while True:
            self._say(await self._find_missing() or await self._follow())
            logger.warning("Kueue: %s", self.missing)
            await asyncio.sleep(LOOK_SECONDS)

    def _say(self, missing: str) -> None:
        changed, self.missing = missing != self.missing, missing
        self.has_looked.set()
        if changed:
            self._on_change()

    async def _find_missing(self) -> str:
        versions = read_groups(await self._api.request("GET", "/apis")).list_versions(names.GROUP)
        if not versions:
            return f"{names.GROUP} is not served: install Kueue, or take the label {names.LABEL_QUEUE} off"
        if names.VERSION not in versions:
            return f"{names.GROUP} is served as {', '.join(versions)}; this operator knows {names.VERSION}"
        return ""

    async def _follow(self) -> str:
        """Follow for as long as that is possible; return why it is not any more."""
        watches = [*(self._watch_workloads(namespace) for namespace in self._namespaces), self._watch_flavors()]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watch.run()) for watch in watches]
                await asyncio.gather(*(w.synced.wait() for w in watches))
                if not any(w.forbidden for w in watches):
                    self._say("")
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # one may not be seen, or served no more
                for task in tasks:
                    task.cancel()
        except Exception:
            self._say("its objects are not followed any more")
            raise
        forbidden = ", ".join(w.path for w in watches if w.forbidden)
        return f"{forbidden} cannot be seen: install the operator's chart with integrations.kueue=true"

    def _watch_workloads(self, namespace: str) -> Watch:
        return Watch(
            self._api,
            path_of(names.API_VERSION, "workloads", namespace),
            replace=functools.partial(self._store.replace_workloads, namespace=namespace),
            apply=self._store.apply_workload,
            selector=SELECTOR,
            required=False,
            intake=self._intake,
        )

    def _watch_flavors(self) -> Watch:
        return Watch(
            self._api,
            path_of(names.API_VERSION, "resourceflavors"),
            replace=self._store.replace_flavors,
            apply=self._store.apply_flavor,
            required=False,
            intake=self._intake,
            key="name",
        )
