"""The pool gives out devices that are free, whoever holds the others."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller import loop_turns
from controller.api_fixture import answering
from elasticjob_operator.api import names
from elasticjob_operator.hub import auth
from elasticjob_operator.hub.server import Hub
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.clock import ClusterClock
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.model.observe import Pod
from elasticjob_operator.pool import rounds
from elasticjob_operator.pool.capacity import Pool, find_devices, find_share
from elasticjob_operator.run.options import Options
from elasticjob_operator.run.pooling import PoolLoop

GPU = "nvidia.com/gpu"
POOLS = (Pool("default", GPU),)
KEY = ("team", "digits")
STARTS, WAITS = "starts with 2 pods", "waits for 2 free devices, which its smallest size needs"


def with_gpus(allocatable: str) -> dict[str, Any]:
    """The status of a node."""
    return {"allocatable": {GPU: allocatable}, "conditions": [{"type": "Ready", "status": "True"}]}


NODE = {"metadata": {"name": "node0"}, "status": with_gpus("4")}


def raw_job(uid: str = "job-1") -> dict[str, Any]:
    container = {"name": "worker", "image": "train:1", "resources": {"limits": {GPU: "1"}}}
    spec = {
        "scaling": {"mode": "Goodput"},
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
        "template": {"spec": {"containers": [container]}},
    }
    return {"metadata": {"name": KEY[1], "namespace": KEY[0], "uid": uid, "resourceVersion": "1"}, "spec": spec}


def raw_pod(namespace: str, job: str, job_uid: str, *, owned: bool = True, gpus: str = "3") -> dict[str, Any]:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": job_uid, "controller": True}
    labels = {names.LABEL_JOB: job, names.LABEL_JOB_UID: job_uid, names.LABEL_INDEX: "0"}
    return {
        "metadata": {
            "name": names.pod_name(job, 0),
            "namespace": namespace,
            "uid": "pod-1",
            "resourceVersion": "2",
            "labels": {**labels, names.LABEL_APP: names.LABEL_APP_VALUE},
            "ownerReferences": [owner] if owned else [],
        },
        "spec": {"nodeName": "node0", "containers": [{"name": "worker", "resources": {"limits": {GPU: gpus}}}]},
        "status": {"phase": "Running"},
    }


def make_cache(kind: type[Cache] = Cache, pools: tuple[Pool, ...] = POOLS) -> Cache:
    """With the job and the node."""
    share, devices = (functools.partial(find, pools) for find in (find_share, find_devices))
    cache = kind(lambda key: None, find_share=share, find_devices=devices)  # type: ignore[arg-type]
    cache.put_node(NODE)
    cache.put_job(raw_job())
    return cache


def with_spec(pod: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**pod, "spec": {**pod["spec"], **changes}}


def with_ended_trainer(pod: dict[str, Any]) -> dict[str, Any]:
    """Another container of it runs on."""
    ended = {"name": "worker", "state": {"terminated": {"exitCode": 0}}}
    return {**pod, "status": {"phase": "Running", "containerStatuses": [ended]}}


async def list_nothing(request: web.Request) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})


async def refuse(token: str, address: str) -> auth.Refusal:
    return auth.Refusal(401, token)


async def find_reason(cache: Cache, directory: Path, pools: tuple[Pool, ...] = POOLS) -> str:
    async with answering(list_nothing, directory) as api:
        hub = Hub(authenticate=refuse, wake=lambda key: None)
        loop = PoolLoop(api, cache, hub, Intake(), lambda key: None, Options(pools=pools))
        await loop.decide()
    decision = loop.find_decision(KEY)
    assert decision is not None
    return decision.reason


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"overhead": 5}, id="overhead"),
        pytest.param({"overhead": {"cpu": "much"}}, id="amount"),
        pytest.param({"resources": "much"}, id="resources"),
        pytest.param({"resources": {"requests": 5}}, id="requests"),
        pytest.param({"resources": {"limits": [GPU]}}, id="limits"),
    ],
)
async def test_a_job_of_one_tenant_does_not_end_the_pool_for_all(pod: dict[str, Any], tmp_path: Path) -> None:
    """What a pod asks for as a whole is of any form: nobody checks it before the pod is made."""
    cache, bad = make_cache(), raw_job("job-2")
    bad["metadata"] |= {"namespace": "evil"}
    bad["spec"]["template"] = {"spec": {**bad["spec"]["template"]["spec"], **pod}}
    cache.put_job(bad)
    assert await find_reason(cache, tmp_path) == STARTS
    (job, _) = cache.jobs["evil", KEY[1]]
    assert [problem.field for problem in job.problems] == ["spec.template"]


def put_greedy(cache: Cache, gpus: str, *, replicas: int | None = None, **more: Any) -> None:
    """A job of another tenant, who came first, and whose pods ask for so many devices."""
    greedy = raw_job("job-2") | more
    greedy["metadata"] |= {"namespace": "evil"}
    greedy["spec"]["elasticPolicy"]["minReplicas"] = 1
    greedy["spec"] |= {} if replicas is None else {"replicas": replicas}
    greedy["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = gpus
    cache.put_job(greedy)


async def test_a_job_that_the_pool_can_never_hold_keeps_no_other_waiting(tmp_path: Path) -> None:
    cache = make_cache()
    put_greedy(cache, "1E")
    assert await find_reason(cache, tmp_path) == STARTS


@pytest.mark.parametrize("node", ["node0", "nowhere"])
async def test_a_pod_that_its_author_has_put_on_a_node_takes_no_more_than_that_has(node: str, tmp_path: Path) -> None:
    """Its job counts as one that has been admitted, so that others have to make room for it."""
    cache = make_cache()
    cache.put_node({**NODE, "metadata": {"name": "node1"}})
    put_greedy(cache, "1")
    cache.put_pod(with_spec(raw_pod("evil", KEY[1], "job-2", gpus="1E"), nodeName=node))
    assert await find_reason(cache, tmp_path) == STARTS


async def test_a_job_that_has_trained_asks_for_no_more_than_a_node_has(tmp_path: Path) -> None:
    """Its template may be changed at any time, and its pods deleted."""
    cache = make_cache()
    cache.put_node({**NODE, "metadata": {"name": "node1"}})
    member = {"rank": 0, "pod": "digits-worker-0", "uid": "p", "node": "node1", "address": "10.0.0.1"}
    put_greedy(cache, "1E", status={"rendezvous": {"generation": 1, "members": [member]}})
    assert cache.jobs["evil", KEY[1]][0].status.rendezvous.members
    assert await find_reason(cache, tmp_path) == STARTS


@pytest.mark.parametrize(("reason", "told"), [("CreateForbidden", STARTS), ("BelowWanted", WAITS)])
async def test_a_job_whose_pods_a_quota_refuses_takes_no_more_than_its_pods(
    reason: str, told: str, tmp_path: Path
) -> None:
    """Whatever number it has written: only a ResourceQuota limits that, and what that refuses is not there."""
    cache = make_cache()
    member = {"rank": 0, "pod": "digits-worker-0", "uid": "p", "node": "node0", "address": "10.0.0.1"}
    degraded = {"type": "Degraded", "status": "True", "reason": reason, "message": "exceeded quota"}
    degraded |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    trained = {"conditions": [degraded], "rendezvous": {"generation": 1, "members": [member]}}
    put_greedy(cache, "1", status=trained, replicas=4)
    cache.put_pod(raw_pod("evil", KEY[1], "job-2", gpus="1"))
    assert cache.jobs["evil", KEY[1]][0].is_pinned
    assert await find_reason(cache, tmp_path) == told


@pytest.mark.parametrize(
    ("pools", "allocatable", "expected"),
    [
        pytest.param(POOLS, "4", 3, id="what it holds"),
        pytest.param(POOLS, "2", 2, id="at most what the node has"),
        pytest.param(POOLS, "0", 4, id="a device plugin begins again"),
        pytest.param((Pool("other", GPU, {"pool": "other"}), *POOLS), "8", 4, id="a node of another pool"),
    ],
)
async def test_how_many_devices_a_pod_of_a_job_has(
    pools: tuple[Pool, ...], allocatable: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its node tells nothing, its template does, up to what a node of the pool has."""
    cache, seen = make_cache(pools=pools), dict[tuple[str, str], int]()
    labels = {"pool": "other"}
    cache.put_node({**NODE, "metadata": {"name": "node1", "labels": labels}, "status": with_gpus(allocatable)})
    job = raw_job()
    job["metadata"]["resourceVersion"] = "2"
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "default"}
    job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "6"
    cache.put_job(job)
    cache.put_pod(with_spec(raw_pod(*KEY, "job-1"), nodeName="node1"))
    original = rounds.share

    def share(jobs: Sequence[rounds.PooledJob], *args: Any, **more: Any) -> Any:
        seen.update((one.job.key, one.devices) for one in jobs)
        return original(jobs, *args, **more)

    monkeypatch.setattr(rounds, "share", share)
    await find_reason(cache, tmp_path, pools)
    assert seen == {KEY: expected}


async def test_a_quota_that_refuses_pods_is_news_for_the_pool(tmp_path: Path) -> None:
    """And so is that it refuses none any more, though no pod has come or gone."""
    cache = make_cache()
    degraded = {"type": "Degraded", "status": "True", "reason": "CreateForbidden", "message": "exceeded quota"}
    async with answering(list_nothing, tmp_path) as api:
        loop = PoolLoop(
            api,
            cache,
            Hub(authenticate=refuse, wake=lambda key: None),
            Intake(),
            lambda key: None,
            Options(pools=POOLS),
        )
        await loop.decide()
        for version, status in (("2", "True"), ("3", "False")):
            job = raw_job() | {"status": {"conditions": [degraded | {"status": status}]}}
            job["metadata"]["resourceVersion"] = version
            cache.put_job(job)
            loop.notice(KEY)
            assert await loop._has_changed()
            await loop.decide()
            loop.notice(KEY)
            assert not await loop._has_changed()


class Poisoned(Cache):
    """Raises for one job, as a mistake of ours would."""

    def pods(self, key: names.JobKey) -> tuple[Pod, ...]:
        if key[0] == "evil":
            raise TypeError("a mistake")
        return super().pods(key)


async def test_a_mistake_of_ours_with_one_job_is_none_with_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, bad = make_cache(Poisoned), raw_job("job-2")
    bad["metadata"] |= {"namespace": "evil"}
    cache.put_job(bad)
    assert await find_reason(cache, tmp_path) == STARTS
    assert "evil/digits: cannot share the pool; this is a bug" in caplog.text


@pytest.mark.parametrize("part", ["find_sizes", "measure", "keep"])
async def test_a_job_that_cannot_be_computed_with_leaves_the_others_theirs(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One of another tenant, of whose numbers a mistake of ours makes an error: in the middle of a round for all."""
    cache, bad = make_cache(), raw_job("job-2")
    bad["metadata"] |= {"namespace": "evil"}
    cache.put_job(bad)
    original, calls = getattr(rounds, part), 0

    def poisoned(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # the jobs come in the order in which they were put
            raise ArithmeticError("a mistake")
        return original(*args)

    monkeypatch.setattr(rounds, part, poisoned)
    assert await find_reason(cache, tmp_path) == STARTS
    assert calls >= 2
    assert "evil/digits: cannot share the pool; this is a bug" in caplog.text


HOLDERS = [
    pytest.param(raw_pod("evil", "other", "job-9", owned=False), id="a pod with the labels of a worker"),
    pytest.param(raw_pod("evil", "other", "job-9"), id="a pod of a job that is gone"),
    pytest.param(raw_pod(*KEY, "job-0"), id="a pod of a job of this name that is gone"),
    pytest.param(with_ended_trainer(raw_pod("evil", "other", "job-9")), id="a pod of which the trainer has ended"),
    pytest.param(
        with_spec(
            raw_pod("evil", "other", "job-9", owned=False),
            containers=[
                {"name": "c", "resources": {"limits": {**{f"a.example/r{n:03}": "1" for n in range(200)}, GPU: "3"}}}
            ],
        ),
        id="a pod with resources that no node has",  # the kubelet does not mind, if nodeName is set
    ),
    pytest.param(
        with_spec(
            raw_pod("evil", "other", "job-9"),
            containers=[{"name": f"c{n}"} for n in range(300)]
            + [{"name": "worker", "resources": {"limits": {GPU: "3"}}}],
        ),
        id="a pod whose last container of many asks for them",
    ),
]
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
OWN = raw_pod(*KEY, "job-1")
KEPT = [
    pytest.param({**OWN, "metadata": {**OWN["metadata"], **GOING}}, id="a finalizer keeps it, or it does not end"),
    pytest.param(with_ended_trainer(OWN), id="its trainer has ended, and another container has not"),
]
NOTHING = [
    pytest.param({"initContainers": [{"name": f"i{n}"} for n in range(1000)]}, id="init containers"),
    pytest.param(
        {"initContainers": [{"name": f"i{n}", "resources": {"limits": {GPU: "0"}}} for n in range(1000)]},
        id="init containers that ask for 0",
    ),
    pytest.param({"containers": [{"name": f"c{n}"} for n in range(1000)]}, id="containers"),
]


@pytest.mark.parametrize("pod", HOLDERS)
async def test_devices_that_a_pod_holds_are_not_given_out(pod: dict[str, Any], tmp_path: Path) -> None:
    cache = make_cache()
    assert await find_reason(cache, tmp_path) == STARTS
    cache.put_pod(pod)
    assert await find_reason(cache, tmp_path) == WAITS
    cache.put_pod({**pod, "metadata": {**pod["metadata"], "resourceVersion": "3"}, "status": {"phase": "Succeeded"}})
    assert await find_reason(cache, tmp_path) == STARTS
    cache.put_pod({**pod, "metadata": {**pod["metadata"], "resourceVersion": "4"}})
    assert await find_reason(cache, tmp_path) == WAITS
    await cache.replace_pods([], "5")
    assert await find_reason(cache, tmp_path) == STARTS


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("changes", NOTHING)
async def test_a_pod_that_asks_for_nothing_keeps_no_node_from_others(
    changes: dict[str, Any], owned: bool, tmp_path: Path
) -> None:
    """It may never run: what counts is that it has a node."""
    pod = raw_pod("evil", "other", "job-9", owned=owned)
    cache = make_cache()
    cache.put_pod(with_spec(pod, **{"containers": [{"name": "worker"}], **changes}))
    assert await find_reason(cache, tmp_path) == STARTS


async def test_devices_are_not_given_out_once_a_pod_has_its_label_again(tmp_path: Path) -> None:
    """Without the label, the watch tells that it is gone. It is listed with the pods of others then."""
    cache, pod = make_cache(), raw_pod("evil", "other", "job-9", owned=False)
    for version, event in enumerate(("ADDED", "DELETED", "ADDED"), 20):
        cache.apply_pod(event, {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(version)}})
    assert await find_reason(cache, tmp_path) == WAITS


@pytest.mark.parametrize("pod", KEPT)
async def test_devices_that_a_pod_of_the_pool_does_not_give_back_are_not_given_out(
    pod: dict[str, Any], tmp_path: Path
) -> None:
    cache, now = make_cache(), 0.0
    cache.put_pod(pod)
    async with answering(list_nothing, tmp_path) as api:
        api.clock = ClusterClock(count=lambda: now)
        hub = Hub(authenticate=refuse, wake=lambda key: None)
        loop = PoolLoop(api, cache, hub, Intake(), lambda key: None, Options(pools=POOLS))
        reasons = []
        for now in (0.0, 20.0, 40.0, 41.0):
            await loop.decide()
            decision = loop.find_decision(KEY)
            assert decision is not None
            reasons.append(decision.reason)
            if now == 40.0:
                cache.drop_pod("pod-1")
    assert reasons == [STARTS, STARTS, WAITS, STARTS]


async def test_what_is_decided_for_many_jobs_is_taken_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant has as many jobs that wait for devices as he likes."""
    cache, told, jobs = make_cache(), Counter[int](), 40
    for number in range(1, jobs):
        waiting = raw_job(f"job-{number}")
        waiting["metadata"] |= {"namespace": "evil", "name": f"waits-{number}"}
        cache.put_job(waiting)
    async with answering(list_nothing, tmp_path) as api, loop_turns.counted(monkeypatch) as turns:
        hub = Hub(authenticate=refuse, wake=lambda key: None)
        loop = PoolLoop(api, cache, hub, Intake(), lambda key: told.update([turns.now]), Options(pools=POOLS))
        await loop.decide()
    assert told.total() == jobs
    assert max(told.values()) <= loop_turns.PIECES
