"""Faults of clusters while jobs train: servers that restart, nodes that leave and return, names that are reused.

They affect the whole cluster, so they run one after the other.
"""

from __future__ import annotations

import time
from functools import partial

from chaos.lab import Stage
from chaos.stories import PATIENCE, QUICK, check_history, create_again
from operator_fixture import wait_for

SIZE = 3


def begin(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=SIZE))
    stage.jobs.await_world(stage.name, SIZE, timeout=PATIENCE)


def generation(stage: Stage) -> int:
    found: int = stage.jobs.status(stage.name)["rendezvous"]["generation"]
    return found


def settle(stage: Stage, size: int = SIZE) -> None:
    """Wait until all train again: every pod is a member, nothing was charged, no two worlds trained at once."""
    wait_for(lambda: trains_wholly(stage, size), f"all train: {stage.jobs.status(stage.name)}", 2 * PATIENCE, 0.2)
    assert stage.jobs.status(stage.name).get("restarts", {}).get("total", 0) == 0, "what a cluster does is free"
    check_history(stage, strict=False)


def trains_wholly(stage: Stage, size: int) -> bool:
    status = stage.jobs.status(stage.name)
    uids = {p["metadata"]["uid"] for p in stage.jobs.pods(stage.name)}
    members = {m["uid"] for m in status["rendezvous"]["members"]}
    return status.get("readyReplicas") == size and uids == members


def api_server_restarts(stage: Stage) -> None:
    """Training continues without the API server; a change that is requested afterwards is made."""
    begin(stage)
    before = generation(stage)
    stage.jobs.cluster.restart_apiserver()
    stage.proxy.faults["restart"] += 1
    stage.jobs.scale(stage.name, 2)
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)
    assert generation(stage) == before + 1, "the restart itself disturbed nobody"
    settle(stage, 2)


def scale_to_two(stage: Stage) -> bool:
    """True once the API server accepts it; raises until then."""
    stage.jobs.scale(stage.name, 2)
    return True


def etcd_restarts(stage: Stage) -> None:
    begin(stage)
    before = generation(stage)
    stage.jobs.cluster.restart_etcd()
    stage.proxy.faults["restart"] += 1
    wait_for(partial(scale_to_two, stage), "it can be asked again", PATIENCE)
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)
    assert generation(stage) == before + 1, "the restart itself disturbed nobody"
    settle(stage, 2)


def node_of(stage: Stage, rank: int) -> str:
    member = stage.jobs.status(stage.name)["rendezvous"]["members"][rank]
    return str(member["node"])


def node_lost_and_back(stage: Stage) -> None:
    begin(stage)
    before, node = generation(stage), node_of(stage, 1)
    stage.jobs.cluster.kill_node(node)
    stage.proxy.faults["node"] += 1
    try:
        wait_for(lambda: generation(stage) > before, "the others go on", PATIENCE)
    finally:
        stage.jobs.cluster.start_node(node)
    settle(stage)


def drain_during_a_rescale(stage: Stage) -> None:
    stage.jobs.create(stage.name, stage.spec(*QUICK, replicas=2))
    stage.jobs.await_world(stage.name, 2, timeout=PATIENCE)
    node = node_of(stage, 0)
    stage.jobs.scale(stage.name, SIZE)
    try:
        stage.jobs.cluster.drain(node, timeout=PATIENCE)
        stage.proxy.faults["drain"] += 1
        settle(stage)
        assert node not in [m["node"] for m in stage.jobs.status(stage.name)["rendezvous"]["members"]]
    finally:
        stage.jobs.cluster.uncordon(node)


def again_while_the_old_ones_train(stage: Stage) -> None:
    """The same name again, while the first job's pods still train under its policy: it waits without retries."""
    begin(stage)
    old = stage.jobs.pods(stage.name)
    path = f"{stage.jobs.path}/{stage.name}"
    stage.jobs.kube.request("DELETE", path, {"propagationPolicy": "Orphan"})
    wait_for(lambda: create_again(stage), "the name is free again", PATIENCE)
    stage.proxy.faults["orphans"] += len(old)
    wait_for(lambda: stage.jobs.condition(stage.name, "Degraded").get("reason") == "NameTaken", "it says so", PATIENCE)
    time.sleep(5)  # what is looked at is how often it tries when it has tried for a while
    made = len(stage.proxy.requests)
    time.sleep(5)
    tries = stage.proxy.count(made)
    assert tries["POST pods"] <= 2, f"no hot retry: {tries}"
    for pod in old:
        name = pod["metadata"]["name"]
        stage.jobs.kube.request("DELETE", f"/api/v1/namespaces/{stage.jobs.namespace}/pods/{name}")
    policies = f"/apis/networking.k8s.io/v1/namespaces/{stage.jobs.namespace}/networkpolicies"
    stage.jobs.kube.request("DELETE", f"{policies}/{stage.name}-workers")  # no pod starts under a policy of others
    stage.jobs.await_world(stage.name, 1, timeout=2 * PATIENCE)
    assert not {p["metadata"]["uid"] for p in old} & {p["metadata"]["uid"] for p in stage.jobs.pods(stage.name)}


STORIES = (
    again_while_the_old_ones_train,
    api_server_restarts,
    etcd_restarts,
    node_lost_and_back,
    drain_during_a_rescale,
)
