"""Creates pods, and compares what came with what was sent: admission may have changed it.

The cache has a pod as soon as it is known to be this job's. One that may have been made though nothing said so is
compared when it is seen.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from elasticjob_operator import times
from elasticjob_operator.api import names
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import alterations, batches, manifests, refusals
from elasticjob_operator.apply.refused_writes import RefusedWrites
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.threads import Threads
from elasticjob_operator.model import ownership
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.values import Deletion, NewPod
from elasticjob_operator.recent import Recent
from elasticjob_operator.rest.errors import ApiError, UnreadableError
from elasticjob_operator.rest.request import METADATA_ONLY, path_of

MOST_REMEMBERED: Final = 1000  # jobs of which something is known
MOST_ITEMS_IN_LOOP: Final = 500  # of a pod that is compared in the event loop
CLOCK_SECONDS: Final = 2.0  # creation times are whole seconds, and the API server's clock is known as well as those
SHM_SECONDS: Final = 300.0  # during which pods get no /dev/shm where a webhook mounts it: it may be removed
_HASH: Final = names.ANNOTATION_TEMPLATE_HASH


@dataclass(frozen=True, slots=True)
class _Sent:
    """A pod whose creation was not answered."""

    at: float
    digest: str  # of what is compared, which changes with its job


class NewPods:
    """The pods that one API server is asked for."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        settings: Callable[[], manifests.Settings],
        threads: Threads,
        refused: RefusedWrites,
        delete: Callable[[Job, Deletion], Awaitable[None]],
    ) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._threads = threads
        self._refused = refused
        self._delete = delete
        # What others have changed in the newest pod, by the job's UID.
        self.altered: Recent[str, str] = Recent(MOST_REMEMBERED)
        # Pods that were deleted again for what others have changed in them, by their UIDs.
        self.given_up: Recent[str, None] = Recent(MOST_REMEMBERED)
        self.held: set[JobKey] = set()  # jobs for which the name of a pod was taken by one that goes, or is gone
        # Pods that may have been made though nothing said so: by the job's UID their names, and what was sent.
        self._unanswered: Recent[str, dict[str, _Sent]] = Recent(MOST_REMEMBERED)
        self._without_shm: Recent[str, float] = Recent(MOST_REMEMBERED)  # until when, by the job's UID

    async def create(self, job: Job, new: NewPod) -> None:
        body, plain = self._build_pod(job, new)
        try:
            await self._send_pod(job, body)
        except ApiError as error:
            if plain is None or not refusals.is_shm_taken(error):
                raise
            self._without_shm[job.uid] = time.monotonic() + SHM_SECONDS
            await self._send_pod(job, plain)

    def _build_pod(self, job: Job, new: NewPod) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The pod, and what to send instead if others mount /dev/shm; None if it has none of the operator's."""
        assert job.spec is not None, "pods are planned for valid jobs only"
        body = manifests.build_pod(job, job.spec, new, self._settings())
        plain = manifests.without_shm(body)
        if plain is not None and time.monotonic() < self._without_shm.get(job.uid, 0.0):
            return plain, None
        return body, plain

    async def _send_pod(self, job: Job, body: dict[str, Any]) -> None:
        name, sent, since = body["metadata"]["name"], self._api.clock(), self._cache.lists.count()
        try:
            made = await self._post_pod(job, body)
        except ApiError as error:
            self._refused.note(job.uid, error, time.monotonic())
            if error.status == 0 or error.status >= 500:
                self._note_unanswered(job, name, _Sent(sent, _digest(body)))
            if error.status != 409:
                raise refusals.name_pod(error, body) from error
            await self._look_at(job, body)
            return
        self._unanswered.get(job.uid, {}).pop(name, None)
        await self._compare(job, body, made)
        self._cache.put_pod({**body, "metadata": made["metadata"]}, since)

    async def _post_pod(self, job: Job, body: dict[str, Any]) -> Any:
        path = path_of("v1", "pods", job.namespace)
        try:
            return await self._api.request("POST", path, body, job=job.name)
        except UnreadableError:  # it is created, and larger than what is read
            return await self._api.request("GET", f"{path}/{body['metadata']['name']}", accept=METADATA_ONLY)

    async def _compare(self, job: Job, body: dict[str, Any], made: Mapping[str, Any]) -> None:
        """Note what others have changed in a new pod. Raises ApiError if that makes it no worker: it is deleted."""
        find = functools.partial(alterations.find_alterations, body, made)
        is_large = alterations.count_items(body) + alterations.count_items(made) > MOST_ITEMS_IN_LOOP
        found = await self._threads.run(job.key, find) if is_large else find()
        if vital := [one for one in found if one.is_vital]:
            metadata = made["metadata"]
            named = refusals.name_alterations(metadata["name"], alterations.describe(vital))
            await self._give_up(job, metadata, named)
        if found:
            self.altered[job.uid] = alterations.tell(found)
        else:
            self.altered.pop(job.uid, None)

    async def _give_up(self, job: Job, metadata: Mapping[str, Any], why: ApiError) -> NoReturn:
        """A pod that is no worker: nobody else would remove it, and it would keep its name and its devices."""
        self.given_up[metadata["uid"]] = None
        try:
            await self._delete(job, Deletion(metadata["name"], metadata["uid"], why.message))
        except ApiError as error:
            kept = f"{why.message}; and it cannot be deleted: {error.message}"
            why = ApiError(why.status, why.reason, kept, error.retry_after)
        self._refused.note(job.uid, why, time.monotonic())
        raise why

    async def _look_at(self, job: Job, body: dict[str, Any]) -> None:
        """The name is taken: read the pod, which is either this job's (not in the cache yet) or another's."""
        name, since = body["metadata"]["name"], self._cache.lists.count()
        try:
            raw = await self._api.request("GET", path_of("v1", "pods", job.namespace, name))
        except UnreadableError:  # none that the operator has made
            raise refusals.name_taken("pod", name) from None
        except ApiError as error:
            if error.status == 404:
                self.held.add(job.key)  # it has gone since, and nothing else might wake the job
                return
            raise
        metadata = raw["metadata"]
        is_ours = ownership.owner_of(metadata)[1] == job.uid
        if is_ours:
            await self._compare_unanswered(job, body, raw)
        if is_ours and not ownership.why_no_worker(metadata):
            if (metadata.get("labels") or {}).get(names.LABEL_APP) != names.LABEL_APP_VALUE:
                raise refusals.label_lost(name)  # no event would tell of its end
            self._cache.put_pod(raw, since)
        elif metadata.get("deletionTimestamp") is not None:
            self.held.add(job.key)
        else:
            raise refusals.name_taken("pod", name)

    # Pods whose creation was not answered: they may have been made, and changed by others.

    def _note_unanswered(self, job: Job, name: str, sent: _Sent) -> None:
        self._unanswered[job.uid] = {name: sent, **self._unanswered.get(job.uid, {})}

    async def look_at_unanswered(self, job: Job) -> list[BaseException]:
        """Compare those that the watch has brought meanwhile."""
        unanswered = self._unanswered.get(job.uid)
        if not unanswered or job.spec is None:
            return []
        found = [pod for pod in self._cache.pods(job.key) if pod.job_uid == job.uid and pod.name in unanswered]
        return await batches.run_all(functools.partial(self._look_again, job, NewPod(pod.index)) for pod in found)

    async def _look_again(self, job: Job, new: NewPod) -> None:
        body, _ = self._build_pod(job, new)
        name = body["metadata"]["name"]
        try:
            made = await self._api.request("GET", path_of("v1", "pods", job.namespace, name))
        except ApiError as error:
            if error.status != 404 and not isinstance(error, UnreadableError):
                raise
        else:
            if ownership.owner_of(made["metadata"])[1] == job.uid:
                await self._compare_unanswered(job, body, made)
        self._unanswered.get(job.uid, {}).pop(name, None)

    async def _compare_unanswered(self, job: Job, body: dict[str, Any], made: Mapping[str, Any]) -> None:
        """Raises ApiError if this pod is no worker, and was made as `body` asks, as far as is known.

        One that was there before may have been made by another version of the operator, or of another template. What
        was sent before the job changed is not known any more.
        """
        metadata = made["metadata"]
        sent = self._unanswered.get(job.uid, {}).pop(metadata["name"], None)
        created = times.parse_time(metadata.get("creationTimestamp"))
        if sent is None or created is None or created < sent.at - CLOCK_SECONDS:
            return
        wanted, found = ((one["metadata"].get("annotations") or {}).get(_HASH) for one in (body, made))
        if wanted == found and sent.digest == _digest(body) and metadata.get("deletionTimestamp") is None:
            await self._compare(job, body, made)


def _digest(body: Mapping[str, Any]) -> str:
    """Of what containers and volumes a pod is to have: where it runs may be decided anew each time."""
    spec = body["spec"]
    compared = [spec.get(field) for field in ("initContainers", "containers", "volumes")]
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()
