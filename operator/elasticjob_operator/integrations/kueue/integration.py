"""Puts Kueue and the passes of a job together: what is admitted goes in, what to ask for comes out."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elasticjob_operator import api
from elasticjob_operator.api import names as ours
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import manifests as objects
from elasticjob_operator.apply import refusals
from elasticjob_operator.integrations.kueue import asking, manifests, names
from elasticjob_operator.integrations.kueue.asking import Create, Delete, LetGo, Set, Wish, Write
from elasticjob_operator.integrations.kueue.manifests import Priority
from elasticjob_operator.integrations.kueue.quota import find_base, keep_what_runs, read_quota
from elasticjob_operator.integrations.kueue.store import Store
from elasticjob_operator.integrations.kueue.values import Workload
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model.observe import Job, Pod
from elasticjob_operator.model.quota import Quota
from elasticjob_operator.plan.values import Plan
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import MERGE_PATCH, path_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks whether Kueue is served by now
RETRY_SECONDS = 10.0  # after the API server has refused a Workload
SELECTOR = f"{ours.LABEL_APP}={ours.LABEL_APP_VALUE}"


@dataclass(frozen=True, slots=True)
class _Refused:
    """What the API server said of a Workload of this job: (reason, message), and when it is tried again."""

    uid: str
    why: tuple[str, str]
    until: float


class Kueue:
    """Jobs with the label of a queue, for one replica of the operator."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        intake: Intake,
        *,
        wake: Callable[[JobKey], None],
        wake_all: Callable[[], None],
        settings: Callable[[], objects.Settings],
    ) -> None:
        self._api = api
        self._namespaces = namespaces or ("",)
        self._intake = intake
        self._wake_all = wake_all
        self.store = Store(wake)
        self.settings = settings
        self.has_looked = asyncio.Event()  # it is known what there is, or that it cannot be known now
        self._missing = "the operator has not looked yet"  # why there is no Kueue; "" where there is one
        self._refused: dict[JobKey, _Refused] = {}

    # Watching.

    async def run(self) -> None:
        """Follows Workloads and flavors for ever, from when they are served."""
        while True:
            self._say(await self._find_missing() or await self._follow())
            logger.warning("Kueue: %s", self._missing)
            await asyncio.sleep(LOOK_SECONDS)

    def _say(self, missing: str) -> None:
        """What is missing from now on; "" only while everything that there is has been read."""
        changed, self._missing = missing != self._missing, missing
        self.has_looked.set()
        if changed:
            self._wake_all()

    async def _find_missing(self) -> str:
        groups = await self._api.request("GET", "/apis")
        served = next((g["versions"] for g in groups.get("groups", ()) if g["name"] == names.GROUP), None)
        if served is None:
            return f"{names.GROUP} is not served: install Kueue, or take the label {names.LABEL_QUEUE} off"
        versions = [v["version"] for v in served]
        if names.VERSION not in versions:
            return f"{names.GROUP} is served as {', '.join(versions)}; this operator knows {names.VERSION}"
        return ""

    async def _follow(self) -> str:
        """Follow for as long as that is possible; return why it is not any more."""
        watches = [
            Watch(
                self._api,
                path_of(names.API_VERSION, "workloads", namespace),
                replace=functools.partial(self.store.replace_workloads, namespace=namespace),
                apply=self.store.apply_workload,
                selector=SELECTOR,
                required=False,
                intake=self._intake,
            )
            for namespace in self._namespaces
        ]
        watches.append(
            Watch(
                self._api,
                path_of(names.API_VERSION, "resourceflavors"),
                replace=self.store.replace_flavors,
                apply=self.store.apply_flavor,
                required=False,
                intake=self._intake,
            )
        )
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

    # What a pass asks before it plans.

    def keys(self) -> Iterable[JobKey]:
        """Of the jobs that there are Workloads of, whether they exist or not."""
        return self.store.keys()

    def see(self, job: Job, pods: Sequence[Pod]) -> Quota | None:
        """What is admitted of a job; None for one without a queue.

        A job that is not ours to run any more, or cannot be, has a queue for as long as it has Workloads.
        """
        if job.status.finished:
            return None
        workloads, _ = self._workloads(job)
        is_run = job.spec is not None and self._is_ours(job.spec)
        queue = self._queue_of(job, workloads) if is_run or workloads else ""
        if not queue:
            return None
        if self._missing:
            return keep_what_runs(self._missing, pods)
        template_hash = job.spec.template_hash if job.spec is not None else ""
        quota = read_quota(workloads, self.store.flavors, template_hash, queue)
        refused = self._refused.get(job.key)
        if refused is None or refused.uid != job.uid:
            return quota
        if quota.is_admitted:
            return replace(quota, message=f"{quota.message}; {refused.why[1]}")
        return quota if find_base(workloads) else Quota(False, *refused.why)

    def _workloads(self, job: Job) -> tuple[list[Workload], list[Workload]]:
        """Those of this job, and those that somebody else has made in its name."""
        genuine: list[Workload] = []
        forged: list[Workload] = []
        for workload in self.store.workloads(job):
            (genuine if manifests.is_genuine(workload, job) else forged).append(workload)
        return genuine, forged

    @staticmethod
    def _is_ours(spec: api.Spec) -> bool:
        return spec.manager in ("", ours.MANAGED_BY)

    @staticmethod
    def _queue_of(job: Job, workloads: Sequence[Workload]) -> str:
        """The queue of a job. One that holds quota stays in its queue until it is suspended."""
        holding = next((w.queue for w in workloads if w.first == 0 and w.reserves and not w.is_finished), "")
        return holding or job.labels.get(names.LABEL_QUEUE, "")

    # What a pass does after it has planned.

    async def settle(self, job: Job, pods: Sequence[Pod], made: Plan, now: float) -> float | None:
        """Asks for quota and gives it back; returns when to have another pass. Raises ApiError."""
        if self._missing:
            return None
        await self._let_go_left_over(job.key, job.uid, pods)
        workloads, forged = self._workloads(job)
        queue = self._queue_of(job, workloads)
        if not (queue or workloads or forged):
            return None
        ours_now = [p for p in pods if p.job_uid == job.uid]
        writes = (*asking.drop(forged), *asking.decide(_wish(job, queue, made), workloads, ours_now))
        if not any(isinstance(write, Create) for write in writes):
            self._refused.pop(job.key, None)  # what was refused is not wanted any more
        refused = self._refused.get(job.key)
        is_held = refused is not None and refused.uid == job.uid and now < refused.until
        for write in writes:
            if is_held and isinstance(write, Create):
                continue
            problem = await self._carry_out(job, queue, write, now)
            if problem is not None:
                is_new = refused is None or refused.why != problem
                self._refused[job.key] = _Refused(job.uid, problem, now + RETRY_SECONDS)
                return now if is_new else now + RETRY_SECONDS
            if isinstance(write, Create):
                self._refused.pop(job.key, None)
        return refused.until if is_held and refused is not None else None

    async def forget(self, key: JobKey, pods: Sequence[Pod]) -> None:
        """A job that is gone: its Workloads go when its pods have."""
        self._refused.pop(key, None)
        if not self._missing:
            await self._let_go_left_over(key, "", pods)

    async def _let_go_left_over(self, key: JobKey, uid: str, pods: Sequence[Pod]) -> None:
        for workload in self.store.left_over(key, uid):
            theirs = [p for p in pods if p.job_uid == workload.job_uid]
            for write in asking.decide(Wish(None, ""), [workload], theirs):
                if isinstance(write, LetGo):
                    await self._patch(key[0], workload, manifests.build_let_go(workload))

    async def _carry_out(self, job: Job, queue: str, write: Write, now: float) -> tuple[str, str] | None:
        """(reason, message) where the API server will not have it."""
        match write:
            case Create():
                return await self._create(job, queue, write)
            case Delete(workload):
                await self._delete(job.namespace, workload)
            case LetGo(workload):
                await self._patch(job.namespace, workload, manifests.build_let_go(workload))
            case Set(workload):
                await self._patch(job.namespace, workload, manifests.build_status_patch(write, now), "status")
        return None

    async def _create(self, job: Job, queue: str, new: Create) -> tuple[str, str] | None:
        assert job.spec is not None, "quota is asked for valid jobs only"
        try:
            priority = await self._find_priority(job, job.spec, new)
            body = manifests.build_workload(job, job.spec, new, queue, self.settings(), priority)
            path = path_of(names.API_VERSION, "workloads", job.namespace)
            raw = await self._api.request("POST", path, body, job=job.name)
        except ApiError as error:
            if not refusals.is_refusal(error) and error.status not in (404, 409):
                raise
            return "WorkloadRefused", f"no quota can be asked for: {error}"
        self.store.put_workload(raw)
        return None

    async def _find_priority(self, job: Job, spec: api.Spec, new: Create) -> Priority | None:
        group, name = manifests.find_class(job, spec, is_base=not new.first)
        if not name:
            return None
        if group == names.GROUP:
            path = path_of(names.API_VERSION, "workloadpriorityclasses", name=name)
        else:
            path = path_of(f"{group}/v1", "priorityclasses", name=name)
        return Priority(group, name, int((await self._api.request("GET", path))["value"]))

    async def _delete(self, namespace: str, workload: Workload) -> None:
        path = path_of(names.API_VERSION, "workloads", namespace, workload.name)
        body = {"preconditions": {"uid": workload.uid}}
        raw = await self._unless_stale(namespace, workload, self._api.request("DELETE", path, body, job=workload.job))
        if raw is not None and raw.get("kind") == "Workload":
            self.store.put_workload(raw)

    async def _patch(self, namespace: str, workload: Workload, body: dict[str, Any], sub: str = "") -> None:
        path = path_of(names.API_VERSION, "workloads", namespace, workload.name, sub)
        call = self._api.request("PATCH", path, body, content_type=MERGE_PATCH, urgency=Urgency.NOW, job=workload.job)
        raw = await self._unless_stale(namespace, workload, call)
        if raw is None:
            return
        if raw["metadata"].get("deletionTimestamp") and not raw["metadata"].get("finalizers"):
            self.store.drop_workload(namespace, workload.name, workload.uid)
        else:
            self.store.put_workload(raw)

    async def _unless_stale(self, namespace: str, workload: Workload, call: Awaitable[Any]) -> Any:
        """None for a Workload that is gone, or has changed: the watch tells of that, and the job has another pass."""
        try:
            return await call
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            if error.status == 404:
                self.store.drop_workload(namespace, workload.name, workload.uid)
            return None


def _wish(job: Job, queue: str, made: Plan) -> Wish:
    status = made.status
    if not status.finished:
        is_another = job.spec is not None and job.spec.manager not in ("", ours.MANAGED_BY)
        classes = [manifests.find_class(job, job.spec, is_base=is_base)[1] for is_base in (True, False)]
        return Wish(job.spec, queue, made.asks if queue and not is_another else 0, classes=(classes[0], classes[1]))
    last = status.condition("Complete") if status.is_true("Complete") else status.condition("Failed")
    return Wish(job.spec, queue, ended=(status.is_true("Complete"), last.message if last else ""))
