"""Carries out what was decided: one request each, and its answer into the store. It contains no policy."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from elasticjob_operator import api
from elasticjob_operator.apply import manifests as objects
from elasticjob_operator.apply import refusals
from elasticjob_operator.integrations.kueue import manifests, names
from elasticjob_operator.integrations.kueue.asking import Adopt, Ask, Create, Delete, LetGo, Set, Write
from elasticjob_operator.integrations.kueue.manifests import Priority
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.model.observe import Job
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import MERGE_PATCH, path_of
from elasticjob_operator.text import clean


class Writer:
    """Writes Workloads. Its methods raise ApiError where the API server has to be asked again."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api = api
        self._store = store

    async def ask(
        self, job: Job, spec: api.Spec, new: Ask, queue: str, settings: objects.Settings
    ) -> tuple[str, str] | None:
        """Ask for quota; (reason, message) where the API server will not have it."""
        if isinstance(new, Adopt):
            return await self._adopt(job, new.name)
        since = self._store.lists.count()
        try:
            priority = await self._find_priority(job, spec, new)
            body = manifests.build_workload(job, spec, new, queue, settings, priority)
            path = path_of(names.API_VERSION, "workloads", job.namespace)
            raw = await self._api.request("POST", path, body, job=job.name)
        except ApiError as error:
            if not refusals.is_refusal(error) and error.status not in (404, 409):
                raise
            return "WorkloadRefused", f"no quota can be asked for: {error}"
        self._store.put_workload(raw, since)
        return None

    async def _adopt(self, job: Job, name: str) -> tuple[str, str] | None:
        since = self._store.lists.count()
        path = path_of(names.API_VERSION, "workloads", job.namespace, name)
        try:
            found = await self._api.request("GET", path, job=job.name)
        except ApiError as error:
            if error.status != 404:
                raise
            return "Pending", f"Workload {name}, which MultiKueue makes for this job, does not exist"
        patch = manifests.build_adoption(found, job)
        if patch is None:
            return "WorkloadRefused", f"Workload {name} is another's: it has an owner, or MultiKueue has not made it"
        raw = await self._api.request("PATCH", path, patch, content_type=MERGE_PATCH, urgency=Urgency.NOW, job=job.name)
        self._store.put_workload(raw, since)
        return None

    async def change(self, namespace: str, write: Write, now: float) -> None:
        """Anything but asking for more."""
        match write:
            case Delete(workload):
                await self._delete(namespace, workload)
            case LetGo(workload):
                await self.let_go(namespace, workload)
            case Set(workload):
                await self._patch(namespace, workload, manifests.build_status_patch(write, now), "status")

    async def let_go(self, namespace: str, workload: Workload) -> None:
        await self._patch(namespace, workload, manifests.build_let_go(workload))

    async def _find_priority(self, job: Job, spec: api.Spec, new: Create) -> Priority | None:
        wanted = manifests.find_class(job, spec, is_base=not new.first)
        if not wanted.name:
            return None
        if wanted.group == names.GROUP:
            path = path_of(names.API_VERSION, "workloadpriorityclasses", name=wanted.name)
        else:
            path = path_of(f"{wanted.group}/v1", "priorityclasses", name=wanted.name)
        try:
            return Priority(wanted.group, wanted.name, (await self._api.request("GET", path))["value"])
        except ApiError as error:
            if error.status != 404:
                raise
            # The API server does not say which, where it takes the name for a path.
            told = f"there is no {wanted.kind} {clean(wanted.name)}, which {wanted.field} names: {error.message}"
            raise ApiError(error.status, error.reason, told) from None

    async def _delete(self, namespace: str, workload: Workload) -> None:
        path = path_of(names.API_VERSION, "workloads", namespace, workload.name)
        body, since = {"preconditions": {"uid": workload.uid}}, self._store.lists.count()
        raw = await self._unless_stale(namespace, workload, self._api.request("DELETE", path, body, job=workload.job))
        if raw is not None and raw.get("kind") == "Workload":
            self._store.put_workload(raw, since)

    async def _patch(self, namespace: str, workload: Workload, body: dict[str, Any], sub: str = "") -> None:
        since = self._store.lists.count()
        path = path_of(names.API_VERSION, "workloads", namespace, workload.name, sub)
        call = self._api.request("PATCH", path, body, content_type=MERGE_PATCH, urgency=Urgency.NOW, job=workload.job)
        raw = await self._unless_stale(namespace, workload, call)
        if raw is None:
            return
        if raw["metadata"].get("deletionTimestamp") and not raw["metadata"].get("finalizers"):
            self._store.drop_workload(namespace, workload.name, workload.uid)
        else:
            self._store.put_workload(raw, since)

    async def _unless_stale(self, namespace: str, workload: Workload, call: Awaitable[Any]) -> Any:
        """None for a Workload that is gone, or has changed: the watch tells of that, and the job has another pass."""
        try:
            return await call
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            if error.status == 404:
                self._store.drop_workload(namespace, workload.name, workload.uid)
            return None
