"""The nodes to avoid, from everything that the operator sees."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from controller import loop_turns
from controller.api_fixture import answering
from controller.builders import NOW
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.history import faulty_nodes as faulty
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.model.observe import Job
from elasticjob_operator.run.node_memory import NodeCondition, NodeMarks, NodeMemory, NodeTaint, find_suspects
from elasticjob_operator.times import format_time


def raw_job(name: str, node: str, count: int, namespace: str = "ml") -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "train:1", "command": ["torchrun", "x.py"]}]}}
    faults = [{"node": one, "count": count, "lastTime": format_time(NOW)} for one in node.split()]
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}, "template": template},
        "status": {"nodeFaults": faults},
    }


def raw_node(name: str, condition: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": [{"type": condition, "status": "True"}]}}


def find(memory: NodeMemory, now: float, namespace: str = "ml") -> tuple[str, ...]:
    found = asyncio.run(memory.find(namespace, now))
    return (*found.known, *(f"{node}?" for node in found.suspected))


def test_new_pods_avoid_what_jobs_of_their_namespace_and_detectors_found() -> None:
    cache = Cache(lambda key: None)
    memory = NodeMemory(cache)
    assert find(memory, NOW) == ()
    cache.put_job(raw_job("one", "node3", 2))
    cache.put_job(raw_job("two", "node4", 1))
    cache.put_node(raw_node("node1", "KernelDeadlock"))
    for number in (2, 3, 4):
        cache.put_node(raw_node(f"node{number}", "Ready"))
    assert find(memory, NOW + 1) == (), "it looks now and then"
    assert find(memory, NOW + 6) == ("node1", "node3")
    assert find(memory, NOW + 6, "other") == ("node1",), "what the cluster says holds for all"
    cache.drop_job(("ml", "one"), "one")
    assert find(memory, NOW - 100) == ("node1",), "a clock that was set back"


def test_no_tenant_discredits_nodes_for_others() -> None:
    """A pod can say what it likes of its node: `echo 'preflight: GPU 0 is broken'`."""
    cache = Cache(lambda key: None)
    for number in range(1, 4):
        cache.put_node(raw_node(f"node{number}", "Ready"))
    for number in range(20):
        cache.put_job(raw_job(f"liar-{number}", "node1 node2 node3", 2, "evil"))
    assert find(NodeMemory(cache), NOW, "victim") == ()
    assert find(NodeMemory(cache), NOW, "evil") == ("node1", "node2", "node3")
    cache.put_job(raw_job("honest", "node2", 1, "ml"))
    assert find(NodeMemory(cache), NOW, "victim") == ("node2?",), "two namespaces agree"


def test_faults_from_before_a_node_was_made_are_of_another_machine() -> None:
    """Whoever repairs machines gives the new one the old one's name, and its node is made anew."""
    cache = Cache(lambda key: None)
    cache.put_job(raw_job("one", "old new same", 2))
    cache.put_job(raw_job("two", "old new same", 2, "lab"))
    for name, made in (("old", NOW - 60), ("same", NOW), ("new", NOW + 60)):
        node = raw_node(name, "Ready")
        cache.put_node({**node, "metadata": {**node["metadata"], "creationTimestamp": format_time(made)}})
    assert find(NodeMemory(cache), NOW + 90) == ("old", "same")
    assert find(NodeMemory(cache), NOW + 90, "other") == ("old?", "same?")


@pytest.mark.parametrize("field", ["managedBy", "runPolicy"])
def test_what_a_job_met_in_another_cluster_says_nothing_about_nodes_of_its_name_here(field: str) -> None:
    """MultiKueue copies the status of a job from the cluster where it runs, and many clusters have a node `gpu-1`."""
    cache = Cache(lambda key: None)
    cache.put_node(raw_node("gpu-1", "Ready"))
    elsewhere: dict[str, Any] = {"managedBy": names.MULTIKUEUE}
    for namespace in ("ml", "lab"):
        job = raw_job("one", "gpu-1", 2, namespace)
        job["spec"] |= elsewhere if field == "managedBy" else {field: elsewhere}
        cache.put_job(job)
    assert find(NodeMemory(cache), NOW) == find(NodeMemory(cache), NOW, "victim") == ()
    cache.put_job(raw_job("two", "gpu-1", 2))
    assert find(NodeMemory(cache), NOW) == ("gpu-1",)


def test_nodes_that_are_not_there_push_no_others_out() -> None:
    cache = Cache(lambda key: None)
    cache.put_node(raw_node("zebra", "Ready"))
    for number in range(20):
        forged = " ".join(f"a{number}-{i}" for i in range(20))
        cache.put_job(raw_job(f"liar-{number}", forged, 99, "evil"))
        cache.put_job(raw_job(f"liar-{number}", forged, 99, "evil-too"))
    cache.put_job(raw_job("one", "zebra", 1, "ml"))
    cache.put_job(raw_job("two", "zebra", 1, "lab"))
    assert find(NodeMemory(cache), NOW, "victim") == ("zebra?",)


async def test_faults_of_many_jobs_are_looked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(lambda key: None)
    async with loop_turns.counted(monkeypatch) as turns:
        looked = Counter[int]()

        class Noted:
            @property
            def status(self) -> api.Status:
                looked[turns.now] += 1
                return api.Status()

        for number in range(100):
            cache.jobs["t", f"j{number}"] = (cast("Job", Noted()), "1")
        await find_suspects(cache, NOW)
    assert looked.total() == 100
    assert max(looked.values()) <= loop_turns.PIECES


@pytest.mark.timeout(60)
async def test_only_one_pass_waits_until_the_faults_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five thousand jobs of one tenant, with twenty faulty nodes each, take a second of a thread every five seconds."""
    cache, may_end, began, add_up = Cache(lambda key: None), threading.Event(), asyncio.Event(), faulty.find_suspects
    loop = asyncio.get_running_loop()

    def take_long(*args: Any) -> faulty.Suspects:
        loop.call_soon_threadsafe(began.set)
        may_end.wait(50)
        return add_up(*args)

    cache.put_job(raw_job("one", "node3", 2))
    memory = NodeMemory(cache)
    assert (await memory.find("ml", NOW)).known == ("node3",)
    monkeypatch.setattr(faulty, "find_suspects", take_long)
    cache.put_job(raw_job("two", "node4", 2))
    looking = asyncio.create_task(memory.find("ml", NOW + 6))
    try:
        await began.wait()
        async with asyncio.timeout(20):
            assert (await memory.find("ml", NOW + 6)).known == ("node3",), "what was known before"
    finally:
        may_end.set()
    assert (await looking).known == ("node3", "node4")


class Nodes:
    """The nodes of an API server: merges a patch of taints, if it is for the version that is stored."""

    def __init__(self, cache: Cache, **taints: list[dict[str, str]]) -> None:
        self.cache = cache
        self.spoiled = ""  # whenever it is read, somebody else writes it
        self.raw: dict[str, Any] = {}
        for name, own in taints.items():
            self.put(name, own)

    def put(self, name: str, taints: list[dict[str, str]]) -> None:
        version = int(self.raw[name]["metadata"]["resourceVersion"]) + 1 if name in self.raw else 1
        metadata = {"name": name, "resourceVersion": str(version)}
        self.raw[name] = {"metadata": metadata, "spec": {"taints": taints}, "status": {}}
        self.cache.put_node(self.raw[name])

    def taints(self, name: str) -> list[str]:
        return [f"{taint['key']}:{taint['effect']}" for taint in self.raw[name]["spec"]["taints"]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        node = self.raw[name]
        if request.method == "PATCH":
            body = await request.json()
            if body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"]:
                return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
            self.put(name, body["spec"]["taints"])
        answer = web.json_response(node)
        if request.method == "GET" and name == self.spoiled:
            self.put(name, node["spec"]["taints"])
        return answer


GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


async def test_faulty_nodes_are_tainted_until_their_faults_are_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(lambda key: None)
    nodes = Nodes(cache, node1=[GPU], node2=[])
    cache.put_job(raw_job("one", "node1", 2))
    cache.put_job(raw_job("liar", "node2", 2, "evil"))
    cache.put_job(raw_job("two", "node1", 1, "lab"))
    nodes.spoiled = "node1"
    async with answering(nodes.answer, tmp_path) as api:
        api.leadership.lend(1e9)
        taints = NodeMarks(api, cache, [NodeTaint()])
        await taints.renew(NOW)
        assert nodes.taints("node1") == ["nvidia.com/gpu:NoSchedule"]
        assert "node1" in caplog.text, "somebody else wrote meanwhile, and it is told"
        nodes.spoiled = ""
        await taints.renew(NOW)
        assert nodes.taints("node1") == ["nvidia.com/gpu:NoSchedule", "elasticjob.dev/faulty:PreferNoSchedule"]
        assert nodes.taints("node2") == []
        before = nodes.raw["node1"]["metadata"]["resourceVersion"]
        await taints.renew(NOW + 3600)
        assert nodes.raw["node1"]["metadata"]["resourceVersion"] == before, "nothing has changed"
        await taints.renew(NOW + 7 * 3600)
        assert nodes.taints("node1") == ["nvidia.com/gpu:NoSchedule"]


async def test_controllers_that_repair_nodes_are_told_until_the_faults_are_forgotten(tmp_path: Path) -> None:
    cache = Cache(lambda key: None)
    cache.put_node(raw_node("node1", "Ready"))
    cache.put_node(raw_node("node2", "Ready"))
    cache.put_job(raw_job("one", "node1", 2))
    cache.put_job(raw_job("liar", "node2", 2, "evil"))
    cache.put_job(raw_job("two", "node1", 1, "lab"))
    written: list[tuple[str, str, dict[str, Any]]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        (condition,) = (await request.json())["status"]["conditions"]
        written.append((request.path, request.content_type, condition))
        cache.put_node({"metadata": {"name": "node1"}, "spec": {}, "status": {"conditions": [condition]}})
        return web.json_response({})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(1e9)
        reports = NodeMarks(api, cache, [NodeCondition()])
        for later in (0, 5, 3600, 7 * 3600, 7 * 3600 + 5):
            await reports.renew(NOW + later)
    assert {(path, kind) for path, kind, _ in written} == {
        ("/api/v1/nodes/node1/status", "application/strategic-merge-patch+json")
    }
    assert [(one["type"], one["status"], one["reason"]) for *_, one in written] == [
        ("elasticjob.dev/Faulty", "True", "JobsFailed"),
        ("elasticjob.dev/Faulty", "False", "NoRecentFailures"),
    ]
    told = [one["lastTransitionTime"] for *_, one in written]
    assert told == [format_time(NOW), format_time(NOW + 7 * 3600)]
    message = "jobs of at least 2 namespaces have failed because of this node in the last hours"
    assert [one["message"] for *_, one in written] == [message, ""], "it names no tenant"


async def test_what_nodes_have_is_looked_at_once_the_faults_are_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes as long as tenants like, and the operator before this one may have written meanwhile."""
    cache, written, add_up = Cache(lambda key: None), list[str](), faulty.find_suspects
    cache.put_node(raw_node("node1", "Ready"))
    cache.put_job(raw_job("one", "node1", 2))
    cache.put_job(raw_job("two", "node1", 1, "lab"))

    looked = 0

    def take_long(*args: Any) -> faulty.Suspects:
        nonlocal looked
        looked += 1
        cache.put_node(raw_node("node1", "elasticjob.dev/Faulty"))
        return add_up(*args)

    async def answer(request: web.Request) -> web.StreamResponse:
        written.append(request.path)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "spec": {}})

    monkeypatch.setattr(faulty, "find_suspects", take_long)
    async with answering(answer, tmp_path) as api:
        api.leadership.lend(1e9)
        await NodeMarks(api, cache, [NodeTaint(), NodeCondition()]).renew(NOW)
    assert (written, looked) == (["/api/v1/nodes/node1"] * 2, 1), "a taint, and no condition"


def test_a_condition_of_our_own_is_no_witness() -> None:
    cache = Cache(lambda key: None)
    cache.put_node(raw_node("node1", "elasticjob.dev/Faulty"))
    assert find(NodeMemory(cache), NOW) == ()
