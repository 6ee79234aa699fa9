"""Deletes what a deleted job has left, without waiting for the garbage collector, and nothing else (ADR 32)."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply import batches, manifests, refusals
from elasticjob_operator.apply.manifests.gangs import Resource
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.fair_queue import Urgency
from elasticjob_operator.model.ownership import POD, Dependent
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan import children
from elasticjob_operator.plan.values import Kind
from elasticjob_operator.rest.errors import ApiError, UnreadableError
from elasticjob_operator.rest.request import path_of

logger = logging.getLogger(__name__)

_PODS = Resource("v1", "pods")


async def clear(api: Api, cache: Cache, served: Served, key: JobKey) -> bool:
    """Delete what the deleted job of this name has left. Return whether that goes on when the cache has changed.

    A rejected deletion is left to the garbage collector, with the rest. Raises ApiError if it has to be retried.
    """
    left = cache.left_over(key)
    chosen = children.choose_left_over(key[1], left)
    errors = await batches.run_all(functools.partial(_delete, api, cache, served, key, one) for one in chosen)
    for error in errors:
        if not isinstance(error, UnreadableError) and not (isinstance(error, ApiError) and refusals.is_refusal(error)):
            raise error
    if errors:
        logger.info("%s/%s: %s; what the job has left goes with the garbage collector", *key, errors[0])
        cache.leave(key)
        return False
    return bool(chosen) or any(one.is_going for one in left)


async def _delete(api: Api, cache: Cache, served: Served, key: JobKey, one: Dependent) -> None:
    """Delete it as it was seen, with its owner reference: if that was removed since, its version is another."""
    body = {"preconditions": {"uid": one.uid, "resourceVersion": one.version}}
    resource = _PODS if one.kind == POD else manifests.resource_of_kind(Kind(one.kind), served)
    path = path_of(resource.group_version, resource.plural, key[0], one.name)
    urgency, since = Urgency.NORMAL if one.kind == POD else Urgency.LATER, cache.lists.count()
    try:
        raw = await api.request("DELETE", path, body, urgency=urgency, job=key[1])
    except UnreadableError:
        raw = None  # it was carried out
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        raw = await _read(api, path, one.uid) if error.status == 409 else None
        if one.kind == POD:
            _enter(cache, one.uid, raw, since)
        else:
            cache.drop_child(one.kind, *key, one.name)
            if raw is not None:
                cache.put_child(one.kind, raw, since=since)
        return
    if one.kind == POD:
        take_answer(cache, one.uid, raw, since)
    else:
        cache.drop_child(one.kind, *key, one.name)


def take_answer(cache: Cache, uid: str, raw: Mapping[str, Any] | None, since: int) -> None:
    """Enter the answer to a pod's deletion: the pod, which is gone unless its grace period or a finalizer keeps it.

    None: it was gone before. `since`: what `lists.count` had said when it was asked for.
    """
    metadata = (raw or {}).get("metadata") or {}
    is_kept = metadata.get("deletionGracePeriodSeconds") != 0 or bool(metadata.get("finalizers"))
    lingers = metadata.get("deletionTimestamp") is not None and is_kept
    if raw is None or raw.get("kind") == "Status" or not lingers:
        cache.drop_pod(uid)
    else:
        cache.put_pod(raw, since)


async def look_again(api: Api, cache: Cache, namespace: str, name: str, uid: str) -> None:
    """Read a pod whose deletion the watch may have missed, and update the cache. A too large one is there."""
    since = cache.lists.count()
    with contextlib.suppress(UnreadableError):
        _enter(cache, uid, await _read(api, path_of("v1", "pods", namespace, name), uid), since)


async def _read(api: Api, path: str, uid: str) -> Any:
    """The object with this UID; None if it is gone."""
    try:
        raw = await api.request("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return raw if raw["metadata"]["uid"] == uid else None


def _enter(cache: Cache, uid: str, raw: Any, since: int) -> None:
    if raw is None:
        cache.drop_pod(uid)
    else:
        cache.put_pod(raw, since)
