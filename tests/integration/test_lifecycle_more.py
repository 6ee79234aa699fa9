"""More of the life cycle on a real API server: sizes, policies, deadlines, gangs and leaving nodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from elasticjob_devcluster import Cluster
from operator_fixture import LIGHT_AGENT, MERGE, Jobs, OperatorProcess, light_spec, wait_for
from side_by_side import together

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"


def pod_uids(jobs: Jobs, name: str) -> set[str]:
    return {p["metadata"]["uid"] for p in jobs.pods(name)}


def world_uids(status: dict[str, Any]) -> list[str]:
    return [m["uid"] for m in status["rendezvous"]["members"]]


def served_policy(jobs: Jobs) -> str:
    """The root of the policy group; old servers have v1beta1 only."""
    group = jobs.kube.request("GET", "/apis/policy")
    return f"/apis/{group['preferredVersion']['groupVersion']}"


class TestSize:
    @together
    def test_a_horizontal_pod_autoscaler_drives_the_size(self, jobs: Jobs) -> None:
        """There is no metrics server here, and none is needed to bring a size back between minimum and maximum."""
        jobs.create("hpa", light_spec())
        jobs.await_world("hpa", 2)
        target = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": "hpa"}
        scaler = {
            "metadata": {"name": "hpa"},
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": 1,
                "maxReplicas": 4,
                "targetCPUUtilizationPercentage": 50,
            },
        }
        path = f"/apis/autoscaling/v1/namespaces/{jobs.namespace}/horizontalpodautoscalers"
        jobs.kube.request("POST", path, scaler)
        scale = jobs.kube.request("GET", f"{jobs.path}/hpa/scale")
        assert scale["spec"]["replicas"] == scale["status"]["replicas"] == 2
        selected = f"/api/v1/namespaces/{jobs.namespace}/pods?labelSelector={scale['status']['selector']}"
        assert len(jobs.kube.request("GET", selected)["items"]) == 2

        def has_seen(count: int) -> bool:
            status = (jobs.kube.get(f"{path}/hpa") or {}).get("status") or {}
            return bool(status.get("currentReplicas") == count)

        wait_for(lambda: has_seen(2), "the autoscaler has found its target")
        jobs.kube.request("PATCH", f"{path}/hpa", {"spec": {"minReplicas": 3}}, content_type=MERGE)
        jobs.await_world("hpa", 3)
        jobs.kube.request("PATCH", f"{path}/hpa", {"spec": {"minReplicas": 1, "maxReplicas": 1}}, content_type=MERGE)
        jobs.await_world("hpa", 1)
        wait_for(lambda: has_seen(1), "the autoscaler counts what is left")

    @together
    def test_the_operator_makes_an_autoscaler_for_metrics(self, jobs: Jobs) -> None:
        policy = {"minReplicas": 1, "maxReplicas": 3}
        jobs.create("auto", light_spec(elasticPolicy={**policy, "metrics": [{"type": "Nonsense"}]}))
        jobs.await_world("auto", 2)
        wait_for(lambda: jobs.condition("auto", "Degraded").get("reason") == "AutoscalerRefused", "it is told")
        told = jobs.condition("auto", "Degraded")["message"]
        assert "elasticPolicy.metrics has no effect: " in told
        assert "spec.metrics[0].type" in told
        jobs.scale("auto", 1)
        jobs.await_world("auto", 1)
        target = {"type": "AverageValue", "averageValue": "1k"}
        metrics = [{"type": "Pods", "pods": {"metric": {"name": "samples"}, "target": target}}]
        jobs.patch("auto", {"elasticPolicy": {"minReplicas": 2, "metrics": metrics}, "replicas": 2})
        path = f"/apis/autoscaling/v1/namespaces/{jobs.namespace}/horizontalpodautoscalers/auto"
        made = wait_for(lambda: jobs.kube.get(path), "it is made")
        assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (2, 3)
        wait_for(lambda: jobs.condition("auto", "Degraded").get("status") == "False", "and nothing is told any more")
        jobs.patch("auto", {"elasticPolicy": {"minReplicas": 3}, "replicas": 3})
        wait_for(lambda: (jobs.kube.get(path) or made)["spec"]["minReplicas"] == 3, "it follows the policy")
        jobs.kube.request("DELETE", path)
        uid = made["metadata"]["uid"]
        wait_for(lambda: (jobs.kube.get(path) or made)["metadata"]["uid"] != uid, "it is made again")
        jobs.patch("auto", {"elasticPolicy": {"metrics": None}})
        wait_for(lambda: jobs.kube.get(path) is None, "it goes with the field")
        jobs.await_world("auto", 3)

    @together
    def test_a_spare_takes_the_place_of_a_lost_member(self, jobs: Jobs, cluster: Cluster) -> None:
        jobs.create("spare", light_spec(elasticPolicy={"spares": 1}))
        before = jobs.await_world("spare", 2)
        wait_for(lambda: len(jobs.pods("spare")) == 3, "two members and a spare")
        wait_for(
            lambda: all(p["status"]["phase"] == "Running" for p in jobs.pods("spare")), "the spare is warm", timeout=90
        )
        known = pod_uids(jobs, "spare")
        cluster.kill_pod(jobs.namespace, before["rendezvous"]["members"][1]["pod"])
        after = jobs.await_world("spare", 2, above=before["rendezvous"]["generation"])
        assert world_uids(after)[0] == world_uids(before)[0]
        assert set(world_uids(after)) <= known, "nobody waits for a new pod"
        wait_for(lambda: len(pod_uids(jobs, "spare") - known) == 1, "there is a new spare")

    @together
    def test_a_spare_has_the_place_of_a_lost_pod_in_its_copy_of_the_model(self, jobs: Jobs, cluster: Cluster) -> None:
        mesh = [{"name": "dp"}, {"name": "tp", "size": 2}]
        jobs.create("mesh", light_spec(replicas=4, elasticPolicy={"maxReplicas": 4, "spares": 1, "mesh": mesh}))
        before = jobs.await_world("mesh", 4)
        wait_for(
            lambda: [p["status"]["phase"] for p in jobs.pods("mesh")] == ["Running"] * 5,
            "the spare is warm",
            timeout=90,
        )
        known = pod_uids(jobs, "mesh")
        cluster.kill_pod(jobs.namespace, before["rendezvous"]["members"][1]["pod"])
        after = jobs.await_world("mesh", 4, above=before["rendezvous"]["generation"])
        (spare,) = known - set(world_uids(before))
        assert world_uids(after) == [world_uids(before)[0], spare, *world_uids(before)[2:]]
        jobs.scale("mesh", 3)
        assert world_uids(jobs.await_world("mesh", 2)) == world_uids(after)[:2], "whole copies"

    @together
    def test_only_steps_are_legal(self, jobs: Jobs) -> None:
        policy = {"minReplicas": 1, "maxReplicas": 4, "replicaIncrementStep": 2}
        jobs.create("step", light_spec(elasticPolicy=policy))
        assert jobs.await_world("step", 1)["replicas"] == 1
        jobs.scale("step", 3)
        jobs.await_world("step", 3)
        jobs.scale("step", 4)
        wait_for(lambda: jobs.condition("step", "Degraded").get("reason") == "BelowWanted", "one more is of no use")
        assert len(jobs.pods("step")) == 3

    @together
    def test_only_discrete_values_are_legal(self, jobs: Jobs) -> None:
        policy = {"minReplicas": 1, "maxReplicas": 4, "replicaDiscreteValues": [1, 2, 4]}
        jobs.create("value", light_spec(replicas=3, elasticPolicy=policy))
        assert jobs.await_world("value", 2)["replicas"] == 2
        jobs.scale("value", 4)
        jobs.await_world("value", 4)

    @together
    def test_bounds_change_while_it_runs(self, jobs: Jobs) -> None:
        jobs.create("bound", light_spec(elasticPolicy={"maxReplicas": 2}))
        before = jobs.await_world("bound", 2)
        jobs.patch("bound", {"elasticPolicy": {"maxReplicas": 3, "minReplicas": 2}, "replicas": 3})
        grown = jobs.await_world("bound", 3)
        assert world_uids(grown)[:2] == world_uids(before)
        path = f"{served_policy(jobs)}/namespaces/{jobs.namespace}/poddisruptionbudgets"

        def follows() -> bool:
            budgets = jobs.kube.request("GET", path)["items"]
            return [b["spec"]["minAvailable"] for b in budgets] == [2]

        wait_for(follows, "the PodDisruptionBudget follows minReplicas")
        jobs.patch("bound", {"elasticPolicy": {"maxReplicas": 2}, "replicas": 2})
        jobs.await_world("bound", 2, above=grown["rendezvous"]["generation"])


class TestTemplate:
    @together
    def test_a_change_moves_all_pods_with_suspend_and_resume(self, jobs: Jobs) -> None:
        jobs.create("edit", light_spec())
        jobs.await_world("edit", 2)
        before = pod_uids(jobs, "edit")
        jobs.patch("edit", {"template": {"metadata": {"labels": {"edition": "second"}}}})
        wait_for(lambda: jobs.condition("edit", "Degraded").get("reason") == "TemplateChanged", "the user is told")
        assert pod_uids(jobs, "edit") == before, "who runs is left alone"
        jobs.patch("edit", {"runPolicy": {"suspend": True}})
        jobs.await_condition("edit", "Suspended")
        jobs.patch("edit", {"runPolicy": {"suspend": False}})
        jobs.await_world("edit", 2)
        assert {p["metadata"]["labels"].get("edition") for p in jobs.pods("edit")} == {"second"}
        wait_for(lambda: jobs.condition("edit", "Degraded").get("status") != "True", "all is well again")

    @together
    def test_more_cpu_is_given_to_pods_that_run(self, jobs: Jobs) -> None:
        spec = light_spec()
        jobs.create("richer", spec)
        status = jobs.await_world("richer", 2)
        before = pod_uids(jobs, "richer")
        spec["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "20m"
        jobs.patch("richer", {"template": spec["template"]})
        listed = jobs.kube.request("GET", "/api/v1")["resources"]
        if any(resource["name"] == "pods/resize" for resource in listed):
            wait_for(lambda: find_cpus(jobs, "richer") == {"20m"}, "all pods have more")
            wait_for(lambda: jobs.condition("richer", "Degraded").get("status") != "True", "nothing is left to do")
        else:
            why = "They cannot be resized in place: the API server cannot resize pods"
            wait_for(lambda: why in jobs.condition("richer", "Degraded").get("message", ""), "the user is told")
            assert find_cpus(jobs, "richer") == {"10m"}
        assert pod_uids(jobs, "richer") == before
        assert jobs.status("richer")["rendezvous"]["generation"] == status["rendezvous"]["generation"]


def find_cpus(jobs: Jobs, name: str) -> set[str]:
    return {p["spec"]["containers"][0]["resources"]["requests"]["cpu"] for p in jobs.pods(name)}


@contextlib.contextmanager
def served_pod_groups(cluster: Cluster) -> Iterator[None]:
    """Volcano's kind, as far as it matters here."""
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    spec = {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
        "versions": [version],
    }
    name = "podgroups.scheduling.volcano.sh"
    wait_for(lambda: cluster.kube.get(f"{VOLCANO}/podgroups") is None, "an earlier test's kind is gone")
    cluster.kube.request("POST", CRDS, {"metadata": {"name": name}, "spec": spec})
    try:
        wait_for(lambda: cluster.kube.get(f"{VOLCANO}/podgroups"), "PodGroups are served")
        yield
    finally:
        cluster.kube.request("DELETE", f"{CRDS}/{name}")


@pytest.fixture
def pod_groups(cluster: Cluster) -> Iterator[None]:
    with served_pod_groups(cluster):
        yield


def gang_spec(**elastic: Any) -> dict[str, Any]:
    spec = light_spec(replicas=3, elasticPolicy=elastic)
    spec["template"]["spec"]["schedulerName"] = "volcano"
    return spec


def minimum(jobs: Jobs) -> int | None:
    """The PodGroup's minMember; None where there is none."""
    found = jobs.kube.get(f"{VOLCANO}/namespaces/{jobs.namespace}/podgroups") or {"items": []}
    return next((group["spec"]["minMember"] for group in found["items"]), None)


class TestOtherControllers:
    @together
    def test_managed_by_another(self, jobs: Jobs) -> None:
        elsewhere = "kueue.x-k8s.io/multikueue"
        jobs.create("other", light_spec(managedBy=elsewhere))
        jobs.create("old", light_spec(runPolicy={"managedBy": elsewhere}))
        jobs.create("ours", light_spec(replicas=1, managedBy="elasticjob.dev/operator"))
        jobs.await_world("ours", 1)
        for name in ("other", "old"):
            assert jobs.status(name) == {"observedGeneration": -1}, "the default of the CRD"
            assert jobs.pods(name) == []

    @together
    def test_created_suspended_as_a_queue_does(self, jobs: Jobs) -> None:
        jobs.create("queue", light_spec(runPolicy={"suspend": True}))
        jobs.await_condition("queue", "Suspended")
        assert jobs.pods("queue") == []
        jobs.patch("queue", {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}})
        jobs.patch("queue", {"runPolicy": {"suspend": False}})
        status = jobs.await_world("queue", 2)
        assert {m["node"] for m in status["rendezvous"]["members"]} == {"node-1"}

    def test_a_gang_is_minreplicas(self, jobs: Jobs, pod_groups: None) -> None:
        jobs.create("gang", gang_spec(minReplicas=2))
        path = f"{VOLCANO}/namespaces/{jobs.namespace}/podgroups"
        (group,) = wait_for(lambda: jobs.kube.request("GET", path)["items"], "the PodGroup exists")
        assert group["spec"]["minMember"] == 2
        assert group["metadata"]["ownerReferences"][0]["name"] == "gang"
        pods = wait_for(lambda: p if len(p := jobs.pods("gang")) == 3 else None, "all pods exist")
        grouped = {
            p["metadata"]["name"]: p["metadata"]["annotations"].get("scheduling.k8s.io/group-name") for p in pods
        }
        own = group["metadata"]["name"]
        assert grouped == {"gang-worker-0": own, "gang-worker-1": own, "gang-worker-2": None}, "extras stay outside"

    def test_a_gang_follows_minreplicas(self, jobs: Jobs, operator: OperatorProcess, pod_groups: None) -> None:
        jobs.create("gang", gang_spec(minReplicas=2))
        wait_for(lambda: minimum(jobs) == 2, "the PodGroup exists")
        wait_for(lambda: len(jobs.pods("gang")) == 3, "all pods exist")
        jobs.patch("gang", {"elasticPolicy": {"minReplicas": 1}})
        wait_for(lambda: minimum(jobs) == 1, "it follows")
        operator.kill()
        jobs.patch("gang", {"elasticPolicy": {"minReplicas": 3}})
        operator.start()
        wait_for(lambda: minimum(jobs) == 3, "it follows what was changed meanwhile")

    def test_a_gang_whose_name_is_taken(self, jobs: Jobs, pod_groups: None) -> None:
        path = f"{VOLCANO}/namespaces/{jobs.namespace}/podgroups"
        body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "gang"}}
        theirs = jobs.kube.request("POST", path, {**body, "spec": {"minMember": 7}})
        jobs.create("gang", gang_spec(minReplicas=2))
        wait_for(lambda: jobs.condition("gang", "Degraded").get("reason") == "NameTaken", "the user is told")
        assert jobs.kube.request("GET", f"{path}/gang")["metadata"] == theirs["metadata"]
        jobs.delete("gang")
        wait_for(lambda: not jobs.pods("gang"), "the job is gone")
        assert jobs.kube.request("GET", f"{path}/gang")["spec"] == {"minMember": 7}

    def test_a_gang_whose_kind_is_served_late(self, jobs: Jobs, cluster: Cluster) -> None:
        """The first write fails, and the pods are there: it is tried again."""
        jobs.create("gang", gang_spec(minReplicas=2))
        wait_for(lambda: jobs.condition("gang", "Degraded").get("reason") == "NotServed", "it is told")
        assert (
            "the cluster does not serve scheduling.volcano.sh/v1beta1" in jobs.condition("gang", "Degraded")["message"]
        )
        wait_for(lambda: len(jobs.pods("gang")) == 3, "all pods exist")
        with served_pod_groups(cluster):
            wait_for(lambda: minimum(jobs) == 2, "the PodGroup exists")
            wait_for(lambda: jobs.condition("gang", "Degraded")["reason"] != "NotServed", "nothing is missing")


class TestEnding:
    @together
    def test_startup_deadline(self, jobs: Jobs) -> None:
        spec = light_spec(runPolicy={"startupDeadlineSeconds": 2})
        spec["template"]["spec"]["nodeSelector"] = {"no": "such-node"}
        jobs.create("never", spec)
        assert jobs.await_condition("never", "Failed")["reason"] == "StartupDeadlineExceeded"
        wait_for(lambda: not jobs.pods("never"), "its pods are gone")

    def test_fault_deadline(self, jobs: Jobs, cluster: Cluster) -> None:
        """The member is lost, and where it could run again there is no room."""
        spec = light_spec(
            elasticPolicy={"minReplicas": 2, "maxReplicas": 2}, runPolicy={"faultDeadlineSeconds": 3}, replicas=2
        )
        jobs.create("fault", spec)
        status = jobs.await_world("fault", 2)
        for node in ("node-0", "node-1", "node-2"):
            cluster.cordon(node)
        try:
            cluster.kill_pod(jobs.namespace, status["rendezvous"]["members"][1]["pod"])
            failed = jobs.await_condition("fault", "Failed")
        finally:
            for node in ("node-0", "node-1", "node-2"):
                cluster.uncordon(node)
        assert failed["reason"] == "FaultDeadlineExceeded"

    @pytest.mark.parametrize(("policy", "kept"), [("All", 0), ("None", 2)])
    @together
    def test_clean_pod_policy(self, jobs: Jobs, policy: str, kept: int) -> None:
        jobs.create("clean", light_spec("--steps", "5", runPolicy={"cleanPodPolicy": policy}))
        jobs.await_condition("clean", "Complete")
        wait_for(lambda: len(jobs.pods("clean")) == kept, f"{kept} pods are kept")

    @together
    def test_rank_0_decides(self, jobs: Jobs) -> None:
        spec = light_spec(successPolicy="Rank0")
        agent = f"exec {sys.executable} {LIGHT_AGENT}"
        script = f'if [ "$ELASTICJOB_REPLICA_INDEX" = 0 ]; then {agent} --steps 20; else {agent}; fi'
        spec["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
        jobs.create("first", spec)
        assert "rank 0" in jobs.await_condition("first", "Complete")["message"]

        def all_ended() -> bool:
            return all(p["status"]["phase"] not in ("Pending", "Running") for p in jobs.pods("first"))

        wait_for(all_ended, "the other one does not train on")


class TestNodes:
    def test_a_termination_taint_moves_a_member(self, jobs: Jobs, cluster: Cluster) -> None:
        jobs.create("taint", light_spec("--leave-on-term"))
        before = jobs.await_world("taint", 2)
        node = before["rendezvous"]["members"][1]["node"]
        cluster.taint(node, "elasticjob.dev/leaving")
        try:
            generation = before["rendezvous"]["generation"]

            def moved() -> dict[str, Any] | None:
                status = jobs.status("taint")
                members = status["rendezvous"]["members"]
                away = len(members) == 2 and node not in [m["node"] for m in members]
                return status if away and status.get("readyReplicas") == 2 else None

            after = wait_for(moved, "both train elsewhere", 90)
            assert after["rendezvous"]["generation"] > generation
            assert after["restarts"]["total"] == 0
        finally:
            cluster.taint(node, "elasticjob.dev/leaving", remove=True)

    def test_a_dead_node_is_replaced_elsewhere(self, jobs: Jobs, cluster: Cluster) -> None:
        jobs.create("dead", light_spec(elasticPolicy={"faultyPodTimeoutSeconds": 2}))
        before = jobs.await_world("dead", 2)
        node = before["rendezvous"]["members"][1]["node"]
        lost = {m["uid"] for m in before["rendezvous"]["members"] if m["node"] == node}
        cluster.kill_node(node)
        try:

            def replaced() -> dict[str, Any] | None:
                status = jobs.status("dead")
                members = status["rendezvous"]["members"]
                away = len(members) == 2 and not lost & {m["uid"] for m in members}
                return status if away and status.get("readyReplicas") == 2 else None

            after = wait_for(replaced, "two train without the lost ones", 120)
            assert node not in [m["node"] for m in after["rendezvous"]["members"]]
            assert after["restarts"]["total"] == 0
            wait_for(lambda: not lost & pod_uids(jobs, "dead"), "nothing hangs in Terminating", 90)
        finally:
            cluster.restart_node(node)
