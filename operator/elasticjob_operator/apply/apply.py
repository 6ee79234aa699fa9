"""Carries out a plan. It contains no policy, only the order of the steps.

The order makes a crash between any two steps harmless. State that must survive (a new generation, a charged failure) is
written to the status first: agents get a generation, and pods are deleted, only after the patch.
409 on create and 404 on delete mean success.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from elasticjob_operator import api
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import batches, deletions, manifests, refusals, resizing
from elasticjob_operator.apply.events import EventRecorder
from elasticjob_operator.apply.new_pods import MOST_REMEMBERED, NewPods
from elasticjob_operator.apply.refused_writes import RefusedWrites
from elasticjob_operator.backoff import find_pause
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.kube.reduced_jobs import reduce_item
from elasticjob_operator.kube.threads import Threads
from elasticjob_operator.model import ownership
from elasticjob_operator.model.observe import Job
from elasticjob_operator.model.revise import revise
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import Child, Deletion, Kind, Plan
from elasticjob_operator.plan.reporting import Event, list_true, observe
from elasticjob_operator.recent import Recent
from elasticjob_operator.rest.errors import BUSY, ApiError, UnreadableError, without_frames
from elasticjob_operator.rest.request import MERGE_PATCH, path_of
from elasticjob_operator.untyped import as_object

logger = logging.getLogger(__name__)

MOST_CREATIONS = 500  # pods per pass; the job may change or be deleted before the next pass
MOST_MEMBERS_IN_LOOP = 1000  # before and after, of a status whose patch is built in the event loop
REFUSED_SECONDS, MOST_REFUSED_SECONDS = 1.0, 300.0  # before a status that decides is sent again
MOST_BUSY_SECONDS = 30.0  # the same, of a server that is too busy for one ...
LONGEST_ASKED = 60.0  # ... and if that asks for more
TOLD_SECONDS = 8.0  # during which it may be busy
# No pod starts before its network policy and its certificate are there. A group keeps nobody out.
_GUARDS = (Kind.NETWORK_POLICY, Kind.CONFIG_MAP)
_FIRST = (*_GUARDS, Kind.POD_GROUP)


class DirectiveSink(Protocol):
    """The part of the hub that a plan needs."""

    def direct(self, job: JobKey, directives: Mapping[str, wire.Directive]) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the writes; `problem` is (reason, message) if the API server rejected one."""

    problem: tuple[str, str] | None = None
    is_blocking: bool = True  # the problem is one of pods, or of what they need
    is_held: bool = False  # a pod's name is taken by a terminating pod, or was a moment ago
    unresized: tuple[str, str] = ("", "")  # the template that the API server does not resize a pod to, and why
    undeleted: tuple[str, str] | None = None  # (reason, message) if it does not delete what the job no longer needs
    again_at: float | None = None  # when a status that it refuses is sent again


@dataclass(frozen=True, slots=True)
class _Refused:
    """The answer to a status that the API server does not take, and that no field less would make right."""

    error: ApiError
    version: str  # of the job
    failures: int
    until: float
    since: float
    is_told: bool

    @property
    def is_busy(self) -> bool:
        """Whether it would take it at another time."""
        return self.error.status in BUSY

    @property
    def told_at(self) -> float:
        return self.since + TOLD_SECONDS

    @property
    def look_at(self) -> float:
        """When it is sent again, or told that it is not."""
        return self.until if self.is_told else min(self.until, self.told_at)


class Applier:
    """Writes plans to one API server."""

    def __init__(self, api: Api, cache: Cache, hub: DirectiveSink, settings: manifests.Settings, reporter: str) -> None:
        self._api = api
        self._cache = cache
        self._hub = hub
        self.settings = settings
        self.recorder = EventRecorder(api, reporter)
        self._threads = Threads("apply")  # for large statuses and pods
        self.served = Served()
        self.refused, self.undeleted = RefusedWrites(), RefusedWrites()
        self.new_pods = NewPods(api, cache, lambda: self.settings, self._threads, self.refused, self._delete_pod)
        self._unwritable: Recent[str, Mapping[str, Any]] = Recent(MOST_REMEMBERED)  # of statuses, by the job's UID
        self._refused: Recent[str, _Refused] = Recent(MOST_REMEMBERED)  # of what decides, by the job's UID
        # The events of the last plan whose status was not written, by the job's UID.
        self._told: Recent[str, frozenset[Event]] = Recent(MOST_REMEMBERED)
        self.on_pruned: Callable[[], None] = lambda: None  # the API server has dropped the claim of a job

    async def close(self) -> None:
        """Begin nothing more, and send the events that wait."""
        self._threads.close()
        await self.recorder.close()

    async def apply(self, job: Job, version: str, plan: Plan, now: float) -> Outcome:
        """Carry out the plan. Raises ApiError if it has to be retried."""
        self.new_pods.held.discard(job.key)
        # While its status is refused, nothing new is begun: a world that stops could not be followed by another one.
        known = self._find_refused(job, version)
        waits = plan.announces or plan.claims or (known is not None and not known.is_busy)
        if not waits:
            self._hub.direct(job.key, plan.directives)
        if plan.confirm:
            await self._confirm(job)
        refused = await self._write(job, version, plan, now)
        unwritten = self._find_refused(job, version) if plan.status != job.status else None
        if waits and unwritten is None:
            self._hub.direct(job.key, plan.directives)
        undeleted = await self._delete_all(job, plan)
        unresized = await resizing.resize_all(self._api, self._cache, job, plan.resize)
        events = list_true(plan.events, has_undeleted=bool(undeleted))
        self.recorder.record(job, self._find_untold(job, events, is_written=unwritten is None), now)
        if plan.delete_job:
            await self._delete_job(job)
        is_held = job.key in self.new_pods.held
        self.new_pods.held.discard(job.key)
        problem, blocks = refusals.find_problem(refused), refusals.is_blocking(refused)
        again_at = unwritten.look_at if unwritten is not None else None
        return Outcome(problem, blocks, is_held, unresized, refusals.find_undeleted(undeleted), again_at)

    def _find_untold(self, job: Job, events: Sequence[Event], *, is_written: bool) -> tuple[Event, ...]:
        """Those to tell: until a status is written, each plan has its events again."""
        told = self._told.pop(job.uid, frozenset())
        if not is_written:
            self._told[job.uid] = frozenset(events)
        return tuple(event for event in events if event not in told)

    def wait_until(self, job: Job, plan: Plan, now: float) -> float:
        """When the API server may be asked for what this plan creates; `now` (monotonic) if it may be at once."""
        writes = (
            len(plan.ensure)
            + min(batches.FIRST, len(plan.create))
            + (plan.set_replicas is not None or plan.set_suspend)
        )
        return self.refused.wait_until(job.uid, writes, now)

    def _note_refused_write(self, job: Job, error: ApiError) -> None:
        self.refused.note(job.uid, error, time.monotonic())

    async def _write(self, job: Job, version: str, plan: Plan, now: float) -> list[ApiError]:
        """Write the objects and the job concurrently; return the rejected writes once all have completed."""
        if plan.claims:
            await self._write_job(job, version, plan, now)
        others = [child for child in plan.ensure if child.kind not in _GUARDS]
        failed, made, *written = await asyncio.gather(  # in this order: a small job's pods are what its user waits for
            self._create_guarded_pods(job, plan),
            asyncio.gather(*(self._ensure(job, child) for child in others), return_exceptions=True),
            *([] if plan.claims else [self._write_job(job, version, plan, now)]),
            return_exceptions=True,
        )
        for result in (*written, made, failed):
            if isinstance(result, BaseException):
                raise result
        assert isinstance(made, list)
        assert isinstance(failed, list)
        return _refused(made) + _refused(failed)

    async def _delete_all(self, job: Job, plan: Plan) -> list[ApiError]:
        """Delete what the plan says; return what was refused. Raises ApiError if it has to be retried."""
        gone = [functools.partial(self._delete_pod, job, deletion) for deletion in plan.delete]
        gone += [functools.partial(self._remove, job, child) for child in plan.remove]
        return _refused(await batches.run_all(gone, first=batches.MOST, goes_on=True))

    async def _create_guarded_pods(self, job: Job, plan: Plan) -> list[BaseException]:
        """Create the pods, once all that guards them is there; otherwise none. Returns the errors."""
        guards = [child for child in plan.ensure if child.kind in _GUARDS]
        ensured = await asyncio.gather(*(self._ensure(job, child) for child in guards), return_exceptions=True)
        errors = [error for error in ensured if error is not None] or await self.new_pods.look_at_unanswered(job)
        if errors:
            return errors
        return await batches.run_all(
            functools.partial(self.new_pods.create, job, new) for new in plan.create[:MOST_CREATIONS]
        )

    # The job.

    async def _write_job(self, job: Job, version: str, plan: Plan, now: float) -> None:
        """Write `spec.replicas` before the status: it changes metadata.generation, which the status refers to."""
        status = plan.status
        if plan.set_replicas is None and not plan.set_suspend:
            await self._patch_status(job, version, status, plan, now)
            return
        try:
            metadata = await self._write_spec(job, version, plan)
        except ApiError as error:
            self._note_refused_write(job, error)
            if not refusals.is_refusal(error):
                raise
            logger.warning("%s/%s: cannot write the spec: %s", job.namespace, job.name, error)
            await self._patch_status(job, version, status, plan, now)
            return
        if status.observed_generation == job.generation:
            status = observe(status, metadata["generation"])
        if plan.set_replicas is not None:
            status = revise(status, written_replicas=plan.set_replicas)
        await self._patch_status(job, str(metadata["resourceVersion"]), status, plan, now)

    async def _write_spec(self, job: Job, version: str, plan: Plan) -> Mapping[str, Any]:
        """Set `spec.replicas` as `kubectl scale` would, marked as the operator's, and `runPolicy.suspend`, as somebody
        would who has looked at the job; return the job's new metadata.
        """
        path = path_of(names.API_VERSION, names.PLURAL, job.namespace, job.name)
        mark = names.ANNOTATION_POOL if plan.is_pool_size else names.ANNOTATION_DEFAULT
        metadata: dict[str, Any] = {"resourceVersion": version, "uid": job.uid}
        spec: dict[str, Any] = {}
        if plan.set_replicas is not None:
            metadata["annotations"], spec["replicas"] = {mark: str(plan.set_replicas)}, plan.set_replicas
        if plan.set_suspend:
            spec["runPolicy"] = {"suspend": True}
        body = {"metadata": metadata, "spec": spec}
        raw = await self._patch_job(job, path, body, _find_urgency(plan))
        written: Mapping[str, Any] = raw["metadata"]
        return written

    async def _patch_status(self, job: Job, version: str, status: api.Status, plan: Plan, now: float) -> None:
        """Write the status, without what the API server refuses of it: that must not hold up all the rest."""
        if status == job.status:  # even if others write to it: their fields are not the operator's
            known = self._refused.get(job.uid)
            if known is not None and not (known.is_busy and now < known.until + MOST_BUSY_SECONDS):
                del self._refused[job.uid]  # else there may be news that are not told now
            return
        assert not job.is_short, "what was not kept of it would be overwritten"
        unwritable = self._unwritable.get(job.uid, {})
        is_large = len(status.rendezvous.members) + len(job.status.rendezvous.members) > MOST_MEMBERS_IN_LOOP
        build = functools.partial(manifests.status_patch, job, status, plan.keep)  # of frozen values
        patch = await self._threads.run(job.key, build) if is_large else build()
        patch = {name: value for name, value in patch.items() if name not in unwritable or unwritable[name] != value}
        path = path_of(names.API_VERSION, names.PLURAL, job.namespace, job.name, "status")
        refused = self._find_refused(job, version)
        if refused is not None and now < refused.until:
            if not refused.is_told and now >= refused.told_at:
                refused = self._refused[job.uid] = replace(refused, is_told=True)
                self._tell_refused(job, refused.error, now)
            if refusals.decides(patch):
                refused.error.retry_after = refused.look_at - now
                raise without_frames(refused.error)
            return
        while patch:
            # The resourceVersion ensures that the decision used the latest state; the UID, that it is the same job.
            body = {"metadata": {"resourceVersion": version, "uid": job.uid}, "status": patch}
            try:
                raw = await self._patch_job(job, path, body, _find_urgency(plan))
            except ApiError as error:
                left_out = refusals.find_unwritable(error, patch)
                if not left_out:
                    self._note_refused(job, version, error, now)
                    if error.status not in (422, *BUSY) or refusals.decides(patch):
                        raise
                    return
                unwritable = {**unwritable, **{name: patch[name] for name in left_out}}
                self._unwritable[job.uid] = unwritable
                patch = {name: value for name, value in patch.items() if name not in left_out}
                told = f"{', '.join(f'status.{name}' for name in left_out)}: not written, since the API server refuses"
                self.recorder.record(job, [Event("StatusRefused", f"{told} it: {error.message}", warning=True)], now)
            else:
                self._refused.pop(job.uid, None)
                is_new = job.status.operator is None and status.operator is not None
                if is_new and not as_object(as_object(raw).get("status")).get("operator"):
                    self.on_pruned()
                return

    def _find_refused(self, job: Job, version: str) -> _Refused | None:
        """The refusal of a status of this job as it is; one that has changed is tried at once, unless that was busy."""
        refused = self._refused.get(job.uid)
        return refused if refused is not None and (refused.is_busy or refused.version == version) else None

    def _note_refused(self, job: Job, version: str, error: ApiError, now: float) -> None:
        """Try later and later what the API server will hardly take, and tell whose job waits for it."""
        is_busy = error.status in BUSY
        if error.status != 422 and not is_busy:
            return
        before, same = self._refused.get(job.uid), self._find_refused(job, version)
        if same is not None and same.is_busy is not is_busy:
            same = None
        failures, since = (1, now) if same is None else (same.failures + 1, same.since)
        pause = find_pause(failures, first=REFUSED_SECONDS, most=MOST_BUSY_SECONDS if is_busy else MOST_REFUSED_SECONDS)
        error.retry_after = max(pause, min(error.retry_after or 0.0, LONGEST_ASKED)) if is_busy else pause
        was_told = before is not None and before.is_told
        is_told = was_told or not is_busy or now >= since + TOLD_SECONDS
        self._refused[job.uid] = _Refused(
            without_frames(error), version, failures, now + error.retry_after, since, is_told
        )
        if is_told and not was_told:
            self._tell_refused(job, error, now)

    def _tell_refused(self, job: Job, error: ApiError, now: float) -> None:
        self.recorder.record(job, [Event("StatusRefused", refusals.explain_unwritten(error), warning=True)], now)

    async def _patch_job(self, job: Job, path: str, body: Mapping[str, Any], urgency: Urgency) -> Any:
        """Write the job or its status, and keep what has become of it."""
        since = self._cache.lists.count()
        raw = await self._api.request(
            *("PATCH", path, body), content_type=MERGE_PATCH, urgency=urgency, job=job.name, reduce=reduce_item
        )
        self._cache.put_job(raw, since)
        return raw

    async def write_claim(self, job: Job, version: str, claim: api.OperatorStatus) -> None:
        """Write nothing but who decides over a job of another operator, or the question to that. Raises ApiError."""
        path = path_of(names.API_VERSION, names.PLURAL, job.namespace, job.name, "status")
        told = {"release": claim.release, "asked": claim.asked}
        body = {"metadata": {"resourceVersion": version, "uid": job.uid}, "status": {"operator": told}}
        await self._patch_job(job, path, body, Urgency.NORMAL)

    async def _confirm(self, job: Job) -> None:
        """Raises ApiError if the job no longer exists or is being deleted."""
        path = path_of(names.API_VERSION, names.PLURAL, job.namespace, job.name)
        since = self._cache.lists.count()
        raw = await self._api.request("GET", path, urgency=Urgency.NOW, reduce=reduce_item)
        self._cache.put_job(raw, since)
        metadata = raw["metadata"]
        if metadata["uid"] != job.uid or metadata.get("deletionTimestamp") is not None:
            raise ApiError(409, "Stale", f"{job.namespace}/{job.name} is being deleted")

    async def _delete_job(self, job: Job) -> None:
        path = path_of(names.API_VERSION, names.PLURAL, job.namespace, job.name)
        body = {"preconditions": {"uid": job.uid}, "propagationPolicy": "Background"}
        await self._unless_gone(job, self._api.request("DELETE", path, body))

    # Pods.

    async def _delete_pod(self, job: Job, deletion: Deletion) -> None:
        path = path_of("v1", "pods", job.namespace, deletion.name)
        body: dict[str, Any] = {"preconditions": {"uid": deletion.uid}}
        if deletion.force:
            body["gracePeriodSeconds"] = 0
        logger.info("%s/%s: deleting %s: %s", job.namespace, job.name, deletion.name, deletion.why)
        since = self._cache.lists.count()
        raw = await self._unless_gone(job, self._api.request("DELETE", path, body, urgency=Urgency.NOW, job=job.name))
        deletions.take_answer(self._cache, deletion.uid, raw, since)

    # Everything else.

    async def _ensure(self, job: Job, child: Child) -> None:
        body, since = manifests.build_child(job, child, self.served), self._cache.lists.count()
        try:
            raw = await self._write_child(job, child, body)
        except ApiError as error:
            self._note_refused_write(job, error)
            raise refusals.name_child(child.kind, error) from error
        self._cache.put_child(child.kind.value, raw, is_sound=True, since=since)

    async def _write_child(self, job: Job, child: Child, body: dict[str, Any]) -> Any:
        path = path_of(body["apiVersion"], manifests.resource_of(child, self.served).plural, job.namespace)
        urgency = Urgency.NORMAL if child.kind in _FIRST else Urgency.LATER
        try:
            return await self._api.request("POST", path, body, urgency=urgency)
        except ApiError as error:
            if refusals.is_unserved(error):
                lack = refusals.name_unserved(child.kind, body["apiVersion"])
                if lack is not None:
                    raise lack from error
                logger.warning("the cluster does not serve %s; continuing without it", body["apiVersion"])
                return body
            if error.status != 409 or "being deleted" in error.message:
                raise
        return await self._update(job, child, body)

    async def _update(self, job: Job, child: Child, body: dict[str, Any]) -> Any:
        """The name is taken: update the object to match `body` if it belongs to this job."""
        path = path_of(body["apiVersion"], manifests.resource_of(child, self.served).plural, job.namespace, child.name)
        try:
            found = await self._api.request("GET", path)
        except UnreadableError:  # none that the operator has made
            raise refusals.name_taken(str(child.kind), child.name) from None
        if ownership.owner_of(found["metadata"])[1] != job.uid:
            raise refusals.name_taken(str(child.kind), child.name)
        change = manifests.correct_child(child.kind, found, body)
        if not change:
            return found
        change.setdefault("metadata", {})["uid"] = found["metadata"]["uid"]
        return await self._api.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def _remove(self, job: Job, child: Child) -> None:
        resource = manifests.resource_of(child, self.served)
        path = path_of(resource.group_version, resource.plural, job.namespace, child.name)
        uid = self._cache.child_uid(job, child.kind.value, child.name)
        await self._unless_gone(job, self._api.request("DELETE", path, {"preconditions": {"uid": uid}}))
        self._cache.drop_child(child.kind.value, job.namespace, job.name, child.name)

    async def _unless_gone(self, job: Job, call: Awaitable[Any]) -> Any:
        """Treat 404 (already deleted) and 409 (another UID, so the object was replaced) as success.

        So is an answer that cannot be read: it was given to a request that was carried out.
        """
        try:
            return await call
        except UnreadableError:
            return None
        except ApiError as error:
            if error.status in (404, 409):
                return None
            self.undeleted.note(job.uid, error, time.monotonic())
            raise


def _find_urgency(plan: Plan) -> Urgency:
    """What nobody waits for takes turns with everybody's pods."""
    return Urgency.NOW if plan.is_awaited else Urgency.NORMAL


def _refused(results: Sequence[BaseException | None]) -> list[ApiError]:
    """The rejected writes; None stands for one that succeeded. Raises the first retryable error."""
    refused: list[ApiError] = []
    for error in results:
        if error is None:
            continue
        if not isinstance(error, ApiError) or not refusals.is_refusal(error):
            raise error
        refused.append(error)
    return refused
