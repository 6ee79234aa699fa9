"""The client against a real API server; statuses are written by hand, pods are real."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller import client_fixture as given
from elasticjob_devcluster import Cluster
from elasticjob_operator.client import (
    AlreadyExistsError,
    Client,
    ClientError,
    ConfigError,
    InvalidError,
    JobFailedError,
    NotFoundError,
    SyncClient,
    UnreachableError,
    WaitTimeoutError,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
PATIENCE = 60.0


@pytest.fixture(scope="module", autouse=True)
def crd(cluster: Cluster) -> None:
    given.install_crd(cluster)


@pytest.fixture
async def client(cluster: Cluster, namespace: str) -> AsyncIterator[Client]:
    async with Client(kubeconfig=str(cluster.kubeconfig), namespace=namespace) as opened:
        yield opened


@pytest.fixture
def sync_client(cluster: Cluster, namespace: str) -> Iterator[SyncClient]:
    with SyncClient(kubeconfig=str(cluster.kubeconfig), namespace=namespace) as opened:
        yield opened


async def test_life_of_a_job(client: Client, namespace: str) -> None:
    made = await client.submit(given.manifest())
    assert (made.name, made.namespace, made.phase) == ("digits", namespace, "Pending")
    assert (await client.scale("digits", 3)).raw["spec"]["replicas"] == 3
    assert (await client.suspend("digits")).raw["spec"]["runPolicy"]["suspend"] is True
    assert (await client.resume("digits")).raw["spec"]["runPolicy"]["suspend"] is False
    await client.submit(given.manifest("other"))
    assert [j.name for j in await client.list()] == ["digits", "other"]
    assert {j.namespace for j in await client.list(all_namespaces=True)} >= {namespace}
    await client.delete("digits")
    assert [j.name for j in await client.list()] == ["other"]


async def test_a_dry_run_leaves_nothing(client: Client) -> None:
    assert (await client.submit(given.manifest(), dry_run=True)).name == "digits"
    assert await client.list() == []


async def test_mistakes_say_what_to_do(client: Client) -> None:
    with pytest.raises(NotFoundError, match="get job nothing"):
        await client.get("nothing")
    with pytest.raises(NotFoundError):
        await client.delete("nothing")
    with pytest.raises(NotFoundError):
        await client.suspend("nothing")
    await client.submit(given.manifest())
    with pytest.raises(AlreadyExistsError, match="choose another name"):
        await client.submit(given.manifest())
    with pytest.raises(InvalidError, match=r"spec.replicas: 9 is outside 1..4"):
        await client.scale("digits", 9)
    with pytest.raises(InvalidError, match="`kubectl elasticjob convert`"):
        await client.submit(given.manifest() | {"kind": "PyTorchJob"})
    with pytest.raises(InvalidError, match=r"metadata.name: is required"):
        await client.submit(given.manifest() | {"metadata": {}})
    with pytest.raises(InvalidError, match="refused"):
        await client.submit(given.manifest("Not_A_Name"))


def write_config(folder: Path, port: int) -> Path:
    """The kubeconfig of a server on this machine."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "", "namespace": "ns"}}
    config = {"current-context": "x", "contexts": [context], "clusters": [cluster], "users": []}
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    path = write_config(tmp_path, port)
    async with Client(kubeconfig=str(path)) as client:
        assert client.namespace == "ns"
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{port} does not answer"):
            await client.list()
    with pytest.raises(ConfigError, match="no context 'y': it has x"):
        await Client(kubeconfig=str(path), context="y").__aenter__()


@pytest.mark.parametrize(
    ("busy", "wait", "asked", "lists"), [(3, "0", 4, True), (99, "0", 10, False), (1, "", 1, False)]
)
async def test_a_busy_server_is_asked_again_if_it_says_so(
    tmp_path: Path, busy: int, wait: str, asked: int, lists: bool
) -> None:
    """As in the first second of a CRD; `wait` is in the header."""
    answers: list[int] = []

    async def answer(_: web.Request) -> web.Response:
        answers.append(429 if len(answers) < busy else 200)
        if answers[-1] == 200:
            return web.json_response({"items": []})
        said = {"kind": "Status", "reason": "TooManyRequests", "message": "storage is (re)initializing"}
        return web.json_response(said, status=429, headers={"Retry-After": wait} if wait else {})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        assert server.port is not None
        async with Client(kubeconfig=str(write_config(tmp_path, server.port))) as client:
            if lists:
                assert await client.list() == []
            else:
                with pytest.raises(ClientError, match="429 Too Many Requests: storage is"):
                    await client.list()
    assert len(answers) == asked


async def test_a_watch_tells_every_change(client: Client, cluster: Cluster, namespace: str) -> None:
    seen: list[tuple[str, str]] = []
    changes = client.watch("digits")
    async with asyncio.timeout(PATIENCE):
        await client.submit(given.manifest("other"))
        first = asyncio.ensure_future(anext(changes))
        await client.submit(given.manifest())
        seen.append(((await first).type, "Pending"))
        given.write_status(cluster, namespace, "digits", given.running_status())
        change = await anext(changes)
        seen.append((change.type, change.job.phase))
        await client.delete("digits")
        seen.append(((await anext(changes)).type, ""))
    await changes.aclose()
    assert seen == [("ADDED", "Pending"), ("MODIFIED", "Running"), ("DELETED", "")]


async def test_waiting(client: Client, cluster: Cluster, namespace: str) -> None:
    await client.submit(given.manifest())
    with pytest.raises(WaitTimeoutError, match=r"no condition Complete=True within 0.2 s; its phase is Pending"):
        await client.wait("digits", timeout=0.2)
    waiter = asyncio.create_task(client.wait("digits", "running", timeout=PATIENCE))
    given.write_status(cluster, namespace, "digits", given.running_status())
    assert (await waiter).phase == "Running"
    failed = {"phase": "Failed", "conditions": [given.condition("Failed", reason="Budget", message="10 restarts")]}
    waiter = asyncio.create_task(client.wait("digits", timeout=PATIENCE))
    given.write_status(cluster, namespace, "digits", failed)
    with pytest.raises(JobFailedError, match="job digits failed: Budget: 10 restarts"):
        await waiter
    assert (await client.wait("digits", "Finished", timeout=PATIENCE)).phase == "Failed"
    waiter = asyncio.create_task(client.wait("digits", "Suspended", timeout=PATIENCE))
    await client.delete("digits")
    with pytest.raises((NotFoundError, JobFailedError)):
        await waiter


async def test_logs_of_all_ranks(client: Client, cluster: Cluster, namespace: str) -> None:
    await client.submit(given.manifest())
    given.write_status(cluster, namespace, "digits", given.running_status(nproc=2))
    for index in (0, 1):
        given.run_pod(cluster, namespace, "digits", index, f"echo one of {index}; echo two of {index}")
    lines = [(line.ranks, line.text) async for line in client.logs("digits", follow=False)]
    assert sorted(lines, key=lambda x: x[1]) == [
        (range(2), "one of 0"),
        (range(2, 4), "one of 1"),
        (range(2), "two of 0"),
        (range(2, 4), "two of 1"),
    ]
    only = [line.text async for line in client.logs("digits", rank=3, tail=1)]
    assert only == ["two of 1"]
    with pytest.raises(NotFoundError, match="rank 9 of digits: the job has ranks 0 to 3"):
        _ = [line async for line in client.logs("digits", rank=9)]
    with pytest.raises(NotFoundError):
        _ = [line async for line in client.logs("nothing")]


async def test_following_takes_up_newcomers_and_ends_with_the_job(
    client: Client, cluster: Cluster, namespace: str
) -> None:
    await client.submit(given.manifest())
    given.write_status(cluster, namespace, "digits", given.running_status())
    given.run_pod(cluster, namespace, "digits", 0, "echo first; sleep 2; echo last")
    texts: list[str] = []
    async with asyncio.timeout(PATIENCE):
        async for line in client.logs("digits", follow=True):
            texts.append(line.text)
            if line.text == "first":
                await asyncio.to_thread(given.run_pod, cluster, namespace, "digits", 1, "echo newcomer")
            if {"last", "newcomer"} <= set(texts):
                complete = {"phase": "Complete", "conditions": [given.condition("Complete")]}
                given.write_status(cluster, namespace, "digits", complete)
    assert sorted(texts) == ["first", "last", "newcomer"]


async def test_events_of_the_job_and_its_pods_only(client: Client, cluster: Cluster, namespace: str) -> None:
    await client.submit(given.manifest())
    job = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": "digits"}
    given.write_event(cluster, namespace, job, "WorldFormed", "generation 1 with 2 pods: the job starts")
    given.write_event(cluster, namespace, {"kind": "Pod", "name": "digits-worker-0"}, "Started", "it runs")
    given.write_event(cluster, namespace, {"kind": "Pod", "name": "digits-worker-0-worker-0"}, "Started", "not ours")
    given.write_event(cluster, namespace, {**job, "name": "digits2"}, "WorldFormed", "not ours")
    found = await client.events("digits")
    assert sorted((e.object, e.message) for e in found) == [
        ("elasticjob/digits", "generation 1 with 2 pods: the job starts"),
        ("pod/digits-worker-0", "it runs"),
    ]


async def test_a_killed_pod_is_the_one_that_was_seen(client: Client, cluster: Cluster, namespace: str) -> None:
    await client.submit(given.manifest())
    given.run_pod(cluster, namespace, "digits", 0, "sleep 1000")
    (pod,) = await client.pods("digits")
    assert (pod.index, pod.phase, pod.trainer) == (0, "Running", "worker")
    await client.kill_pod(pod)
    await asyncio.to_thread(given.wait_until_gone, cluster, namespace, pod.name)
    with pytest.raises(NotFoundError):
        await client.kill_pod(pod)


def test_the_same_without_async(sync_client: SyncClient, cluster: Cluster, namespace: str) -> None:
    client = sync_client
    client.submit(given.manifest())
    assert client.scale("digits", 2).raw["spec"]["replicas"] == 2
    changes = client.watch("digits")
    assert next(changes).type == "ADDED"
    changes.close()  # type: ignore[attr-defined]
    given.run_pod(cluster, namespace, "digits", 0, "echo hello")
    assert [line.text for line in client.logs("digits")] == ["hello"]
    complete = {"phase": "Complete", "conditions": [given.condition("Complete")]}
    later = threading.Timer(0.3, given.write_status, (cluster, namespace, "digits", complete))
    later.start()
    assert client.wait("digits", timeout=PATIENCE).phase == "Complete"
    later.join()
    assert client.events("digits") == [] or client.events("digits")[0].object.startswith("pod/")
    client.delete("digits")
    with pytest.raises(NotFoundError):
        client.get("digits")
