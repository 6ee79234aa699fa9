"""The nodes to avoid, from everything that the operator sees."""

from __future__ import annotations

from typing import Any

from controller.builders import NOW
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.run.node_memory import NodeMemory
from elasticjob_operator.times import format_time


def raw_job(name: str, node: str, count: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "train:1", "command": ["torchrun", "x.py"]}]}}
    fault = {"node": node, "count": count, "lastTime": format_time(NOW)}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}, "template": template},
        "status": {"nodeFaults": [fault]},
    }


def raw_node(name: str, condition: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": [{"type": condition, "status": "True"}]}}


def test_new_pods_avoid_what_other_jobs_and_detectors_found() -> None:
    cache = Cache(lambda key: None)
    memory = NodeMemory(cache)
    assert memory.find(NOW) == ()
    cache.put_job(raw_job("one", "node3", 2))
    cache.put_job(raw_job("two", "node4", 1))
    cache.put_node(raw_node("node1", "KernelDeadlock"))
    cache.put_node(raw_node("node2", "Ready"))
    assert memory.find(NOW + 1) == (), "it looks now and then"
    assert memory.find(NOW + 6) == ("node1", "node3")
    cache.drop_job(("ml", "one"), "one")
    assert memory.find(NOW - 100) == ("node1",), "a clock that was set back"
