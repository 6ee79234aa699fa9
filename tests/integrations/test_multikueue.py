"""MultiKueue with two control planes and Kueue's own manager in both: a job of one runs in the other."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from integrations import kueue_kinds
from integrations.conftest import PRIORITIES, Queues, make_object, strip_finalizers
from integrations.kueue_kinds import ROOT
from integrations.kueue_manager import Manager, find_missing
from integrations.kueue_standin import find, is_true
from operator_fixture import Jobs, OperatorProcess, install_crd, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.kueue, pytest.mark.timeout(400)]
NAMESPACE = "team"
GENEROUS = 120.0  # seconds for a change that both control planes see
SECRETS = "/api/v1/namespaces/kueue-system/secrets"


class Side:
    """One of the two clusters, with its Kueue, its operator and its queue."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.kueue = Manager(cluster, directory)
        self.operator = OperatorProcess(cluster, directory, "--stable-seconds", "1", "--integrations", "kueue")
        self.definitions = kueue_kinds.find_own()
        cluster.make_namespace(NAMESPACE)
        install_crd(cluster)
        kueue_kinds.install(cluster, self.definitions)
        make_object(cluster.kube, f"{ROOT}/resourceflavors", "ResourceFlavor", "default", {"spec": {}})
        for name, value in PRIORITIES.items():
            described = {"value": value, "description": ""}
            make_object(cluster.kube, f"{ROOT}/workloadpriorityclasses", "WorkloadPriorityClass", name, described)
        self.queues = Queues(Jobs(cluster, NAMESPACE))
        self.jobs = self.queues.jobs

    def start(self) -> None:
        self.kueue.start()
        self.operator.start()

    def find(self, name: str) -> dict[str, Any] | None:
        return self.cluster.kube.get(f"{self.jobs.path}/{name}")

    def stop(self) -> None:
        self.operator.stop()
        self.kueue.stop()
        strip_finalizers(self.cluster)


@pytest.fixture(scope="module")
def sides(
    cluster: Cluster, cluster_factory: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Side, Side]]:
    """(the one that jobs are submitted to, the one that they run in), each with quota for four pods."""
    missing = find_missing() or find_unwatchable(cluster)
    if missing:
        pytest.skip(missing)
    here = Side(cluster_factory(nodes=[]), tmp_path_factory.mktemp("here"))
    there = Side(cluster, tmp_path_factory.mktemp("there"))
    for side in (there, here):
        side.start()
    kube = here.cluster.kube
    config = base64.b64encode(cluster.kubeconfig.read_bytes()).decode()
    kube.request("POST", SECRETS, {"metadata": {"name": "there"}, "data": {"kubeconfig": config}})
    source = {"clusterSource": {"kubeConfig": {"location": "there", "locationType": "Secret"}}}
    make_object(kube, f"{ROOT}/multikueueclusters", "MultiKueueCluster", "there", {"spec": source})
    make_object(kube, f"{ROOT}/multikueueconfigs", "MultiKueueConfig", "all", {"spec": {"clusters": ["there"]}})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "all"}
    check = {"spec": {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}}
    make_object(kube, f"{ROOT}/admissionchecks", "AdmissionCheck", "elsewhere", check)
    wait_for(lambda: is_true(kube.get(f"{ROOT}/admissionchecks/elsewhere") or {}, "Active"), "the check is active", 180)
    there.queues.make("gpus", 4)
    here.queues.make("gpus", 4, checks=["elsewhere"])
    yield here, there
    for side in (here, there):
        print(f"an operator said:\n{side.operator.log[-6000:]}")
        assert "this is a bug" not in side.operator.log
        side.queues.clean()
        side.stop()
    kueue_kinds.remove(cluster, there.definitions)


def find_unwatchable(cluster: Cluster) -> str:
    """Why MultiKueue cannot follow what happens in a cluster; "" where it can. It watches from no version on."""
    said = cluster.kube.raw("GET", "/api/v1/namespaces?watch=1&timeoutSeconds=1").decode()
    needs = "RequestWatchProgress is disabled"
    return "MultiKueue needs a control plane with etcd 3.5.8 or newer" if needs in said else ""


def submit(here: Side, name: str, *arguments: str, **spec: Any) -> None:
    fields: dict[str, Any] = light_spec(*arguments, **spec)
    here.queues.submit(name, "gpus", priority="low", managedBy="kueue.x-k8s.io/multikueue", **fields)


def await_shown(here: Side, name: str, size: int) -> None:
    """The status here is that of the job there."""
    wait_for(
        lambda: here.jobs.status(name).get("rendezvous", {}).get("worldSize") == size,
        f"{name} is shown with {size} members: {here.jobs.status(name)}",
        GENEROUS,
    )


def test_a_job_runs_and_grows_in_the_other_cluster_and_its_end_is_copied(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    here, there = sides
    end = tmp_path / "end"
    submit(here, "sent", "--until", str(end), elasticPolicy={"minReplicas": 2, "maxReplicas": 4}, replicas=3)
    there.jobs.await_world("sent", 3, timeout=GENEROUS)
    await_shown(here, "sent", 3)
    (base,) = here.queues.workloads("sent")
    assert base["spec"]["podSets"][0]["count"] == 2
    assert base["status"]["clusterName"] == "there"
    assert len(there.queues.workloads("sent")) == 2, "the base that was sent, and an increment"
    assert here.jobs.pods("sent") == []
    here.jobs.scale("sent", 4)
    (told,) = wait_for(lambda: [m for r, m in here.jobs.events("sent") if r == "NotForwarded"], "it is told", GENEROUS)
    assert "cluster there" in told
    assert "suspend and resume" in told
    wait_for(lambda: is_true(here.queues.workloads("sent")[0], "PodsReady"), "PodsReady is told here")
    end.touch()
    here.jobs.await_condition("sent", "Complete", GENEROUS)
    wait_for(lambda: is_true(here.queues.workloads("sent")[0], "Finished"), "its Workload is finished", GENEROUS)
    wait_for(lambda: there.find("sent") is None, "the copy is deleted", GENEROUS)
    assert find(here.queues.workloads("sent")[0], "Finished")["reason"] == "Succeeded"
    here.jobs.delete("sent")


PAIR: dict[str, Any] = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 2}}


def test_a_job_that_is_preempted_there_comes_back_and_is_sent_again(sides: tuple[Side, Side]) -> None:
    here, there = sides
    submit(here, "back", **PAIR)
    there.jobs.await_world("back", 2, timeout=GENEROUS)
    await_shown(here, "back", 2)
    there.queues.submit(
        "urgent", "gpus", priority="high", elasticPolicy={"minReplicas": 3, "maxReplicas": 3}, replicas=3
    )
    there.jobs.await_world("urgent", 3, timeout=GENEROUS)
    wait_for(lambda: here.queues.condition("back")[0] == "False", "it waits again", GENEROUS)
    assert here.jobs.status("back")["phase"] == "Suspended"
    there.jobs.delete("urgent")
    there.jobs.await_world("back", 2, timeout=GENEROUS)
    await_shown(here, "back", 2)
    here.jobs.delete("back")
    wait_for(lambda: there.find("back") is None, "the copy is deleted", GENEROUS)


def test_a_job_is_suspended_resumed_and_deleted_where_it_was_submitted(sides: tuple[Side, Side]) -> None:
    here, there = sides
    submit(here, "held", **PAIR)
    there.jobs.await_world("held", 2, timeout=GENEROUS)
    await_shown(here, "held", 2)
    here.jobs.patch("held", {"runPolicy": {"suspend": True}})
    wait_for(lambda: there.find("held") is None, "the copy is deleted", GENEROUS)
    here.jobs.await_condition("held", "Suspended", GENEROUS)
    wait_for(lambda: here.queues.workloads("held") == [], "Kueue lets its Workload go", GENEROUS)
    here.jobs.patch("held", {"runPolicy": {"suspend": False}})
    there.jobs.await_world("held", 2, timeout=GENEROUS)
    await_shown(here, "held", 2)
    here.jobs.delete("held")
    wait_for(lambda: there.find("held") is None, "the copy is deleted", GENEROUS)
    for side in sides:
        wait_for(lambda side=side: side.queues.workloads() == [], "no Workload is left", GENEROUS)  # type: ignore[misc]
