"""The deletion of what a deleted job has left, against a server that has a say in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.kube.test_cache import KEY, OWNER, raw_child, raw_job, raw_pod
from elasticjob_operator.apply import deletions
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import MOST_OBJECT_BYTES
from elasticjob_operator.model.served import Served
from elasticjob_operator.rest.errors import ApiError

POD = "/api/v1/namespaces/team/pods/digits-worker-0"
POLICY = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies/digits-workers"


class Server:
    """The objects by path; a deletion has to name the UID and the version that the object has."""

    def __init__(self, *objects: tuple[str, dict[str, Any]], grace: int = 0, refusal: int = 0) -> None:
        self.objects, self.grace, self.refusal = dict(objects), grace, refusal
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path.rpartition('/')[2]}")
        found = self.objects.get(request.path)
        if found is None:
            return web.json_response({"reason": "NotFound"}, status=404)
        if request.method == "GET":
            return web.json_response(found)
        body = await request.json()
        if self.refusal:
            return web.json_response({"reason": "Refused", "message": "no"}, status=self.refusal)
        metadata = found["metadata"]
        if body["preconditions"] != {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}:
            return web.json_response({"reason": "Conflict"}, status=409)
        assert "gracePeriodSeconds" not in body, "the grace period is the pod's own"
        if not self.grace and not metadata.get("finalizers"):
            del self.objects[request.path]
        else:
            going = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": self.grace}
            found["metadata"] = {**metadata, **going, "resourceVersion": "21"}
        return web.json_response(found)


def cache_of(*, is_deleted: bool = True) -> Cache:
    """A job that had one pod and a network policy."""
    cache = Cache(lambda key: None)
    cache.put_job(raw_job())
    cache.put_pod(raw_pod())
    cache.put_child("NetworkPolicy", raw_child())
    if is_deleted:
        cache.apply_job("DELETED", raw_job())
    return cache


async def clear(server: Server, cache: Cache, directory: Path, passes: int = 1) -> list[bool]:
    async with answering(server.answer, directory) as api:
        api.leadership.lend(math.inf)
        return [await deletions.clear(api, cache, Served(), KEY) for _ in range(passes)]


async def test_pods_go_first_and_then_their_policy(tmp_path: Path) -> None:
    server, cache = Server((POD, raw_pod()), (POLICY, raw_child())), cache_of()
    assert await clear(server, cache, tmp_path, passes=3) == [True, True, False]
    assert server.asked == ["DELETE digits-worker-0", "DELETE digits-workers"], "one request for each"
    assert server.objects == {} and cache.left_over(KEY) == ()


async def test_a_pod_has_its_grace_period(tmp_path: Path) -> None:
    server, cache = Server((POD, raw_pod()), (POLICY, raw_child()), grace=30), cache_of()
    assert await clear(server, cache, tmp_path, passes=2) == [True, True]
    assert server.asked == ["DELETE digits-worker-0"], "it is asked once, and its policy stays until it has ended"
    assert cache.pods(KEY)[0].deleting is not None


async def test_a_pod_that_a_finalizer_holds_is_there(tmp_path: Path) -> None:
    """One that has ended, or was never scheduled, has no grace period."""
    pod = raw_pod(finalizers=["example.com/keep"])
    server, cache = Server((POD, pod), (POLICY, raw_child()), grace=0), cache_of()
    assert await clear(server, cache, tmp_path, passes=2) == [True, True]
    assert server.asked == ["DELETE digits-worker-0"], "it is asked once, and its policy stays until it is gone"
    assert cache.pods(KEY)[0].deleting is not None


async def test_nothing_is_deleted_of_a_job_that_is_there_or_was_only_not_found(tmp_path: Path) -> None:
    server, cache = Server((POD, raw_pod()), (POLICY, raw_child())), cache_of(is_deleted=False)
    assert await clear(server, cache, tmp_path) == [False]
    cache.drop_job(KEY, "job-1")
    assert await clear(server, cache, tmp_path) == [False]
    assert server.asked == []


@pytest.mark.parametrize("owners", [[], [OWNER, {**OWNER, "uid": "other", "controller": False}]], ids=["none", "two"])
async def test_orphaned_and_shared_objects_stay(owners: list[dict[str, Any]], tmp_path: Path) -> None:
    """`kubectl delete --cascade=orphan`: the references were removed, and the watches have not told of it yet."""
    pod = raw_pod(ownerReferences=owners, resourceVersion="21")
    policy = raw_child(ownerReferences=owners, version="31")
    server, cache = Server((POD, pod), (POLICY, policy)), cache_of()
    await clear(server, cache, tmp_path, passes=3)
    assert set(server.objects) == {POD, POLICY}
    assert cache.left_over(KEY) == ()
    assert len(server.asked) <= 4, "each is tried once and looked at"


async def test_what_has_changed_is_tried_again_as_it_is_now(tmp_path: Path) -> None:
    server = Server((POD, raw_pod(resourceVersion="22")), (POLICY, raw_child(version="32")))
    cache = cache_of()
    await clear(server, cache, tmp_path, passes=4)
    assert server.objects == {}


async def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    server, cache = Server(), cache_of()
    assert await clear(server, cache, tmp_path, passes=3) == [True, True, False]
    assert not cache.pods(KEY)


async def test_a_refused_deletion_is_left_to_the_garbage_collector(tmp_path: Path) -> None:
    server, cache = Server((POD, raw_pod()), (POLICY, raw_child()), refusal=403), cache_of()
    assert await clear(server, cache, tmp_path, passes=2) == [False, False]
    assert server.asked == ["DELETE digits-worker-0"]


async def test_an_error_of_the_server_is_raised_for_a_retry(tmp_path: Path) -> None:
    server, cache = Server((POD, raw_pod()), refusal=503), cache_of()
    with pytest.raises(ApiError):
        await clear(server, cache, tmp_path)
    server.refusal = 0
    await clear(server, cache, tmp_path)
    assert server.objects == {}


async def test_what_has_become_too_large_to_be_read_is_left_to_the_garbage_collector(tmp_path: Path) -> None:
    pod = raw_pod(resourceVersion="22", annotations={"x": "x" * MOST_OBJECT_BYTES})
    server, cache = Server((POD, pod)), cache_of()
    assert await clear(server, cache, tmp_path, passes=2) == [False, False]
    assert server.asked == ["DELETE digits-worker-0", "GET digits-worker-0"]
