"""The chart gives the rights for Kueue when it is turned on: those that are used, and no others."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import helm_python
import pytest

from chart_fixture import CHART, container, render
from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster, KubeError
from integrations import kueue_kinds
from integrations.conftest import Queues, make_object
from integrations.kueue_kinds import ROOT
from integrations.kueue_standin import StandIn
from manifests.test_chart_release import await_no_crds, remove_crds
from manifests.test_rbac import ChartOperator, find_unused, read_grants
from operator_fixture import Jobs, light_spec, wait_for

VALUES = {
    "replicas": 0,
    "crds": {"keep": False},
    "images": {"runtime": {"enabled": False}},
    "integrations": {"kueue": True},
}
GROUPS = ("kueue.x-k8s.io", "scheduling.k8s.io")
SYSTEM, WORK = "system-kueue", "work-kueue"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_no_rights_and_no_option_unless_it_is_turned_on() -> None:
    for values, given in (({}, False), ({"integrations": {"kueue": True}}, True)):
        objects = render(values)
        assert ("--integrations=kueue" in container(objects)["args"]) is given
        roles = [o for o in objects if o["kind"] in ("ClusterRole", "Role")]
        rules = [rule for role in roles for rule in role.get("rules") or ()]
        assert any("kueue.x-k8s.io" in rule["apiGroups"] for rule in rules) is given


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_every_rule_for_kueue_is_used_and_none_is_missing(audited: Cluster, tmp_path: Path) -> None:
    kube, definitions = audited.kube, kueue_kinds.build()
    kueue_kinds.install(audited, definitions)
    remove_crds(audited)  # another test's: Helm takes over none that is not its own
    audited.make_namespace(WORK)
    make_object(kube, f"{ROOT}/resourceflavors", "ResourceFlavor", "default", {"spec": {}})
    make_object(kube, f"{ROOT}/workloadpriorityclasses", "WorkloadPriorityClass", "high", {"value": 1})
    kube.request("POST", CLASSES, {"metadata": {"name": "of-pods"}, "value": 5})
    admitter = StandIn(audited)
    admitter.start()
    with helm_python.Config(kubeconfig_path=audited.kubeconfig, namespace=SYSTEM) as helm:
        helm.install(CHART, "elasticjob", VALUES, namespace=SYSTEM, create_namespace=True)
        operator = ChartOperator(audited, SYSTEM, VALUES, tmp_path)
        try:
            operator.start("127.0.0.1")
            live(Queues(Jobs(audited, WORK)))
        finally:
            operator.stop()
            admitter.stop()
            grants = [g for g in read_grants(audited, operator.user) if g.group in GROUPS]
            helm.uninstall("elasticjob")
            await_no_crds(audited)
            kueue_kinds.remove(audited, definitions)
            remove_namespace(audited, WORK)
            for path in (f"{CLASSES}/of-pods", f"/api/v1/namespaces/{SYSTEM}"):
                with contextlib.suppress(KubeError):
                    kube.request("DELETE", path)
    with contextlib.suppress(AssertionError):
        wait_for(lambda: find_unused(grants, operator.requests()) == [], "every rule is used", timeout=20)
    requests = operator.requests()
    assert [r for r in requests if r.group in GROUPS and not r.allowed] == [], "a rule is missing"
    assert len(grants) > 5, "the roles were read"
    assert find_unused(grants, requests) == [], "a rule is unused"


def live(queues: Queues) -> None:
    queues.make("gpus", 3)
    queues.submit("first", "gpus", priority="high", elasticPolicy={"minReplicas": 1, "maxReplicas": 2})
    queues.jobs.await_world("first", 2)
    queues.jobs.scale("first", 1)
    wait_for(lambda: len(queues.workloads("first")) == 1, "the increment is given back")
    spec = light_spec(replicas=1)
    spec["template"]["spec"]["priorityClassName"] = "of-pods"
    queues.submit("second", "gpus", **spec)
    queues.jobs.await_world("second", 1)
    receive(queues, "third", queues.workloads("second")[0], spec)
    queues.jobs.await_world("third", 1)
    assert [w["metadata"]["name"] for w in queues.workloads("third")] == ["third-0123abcd-0"]
    queues.clean()


def receive(queues: Queues, name: str, like: dict[str, Any], spec: dict[str, Any]) -> None:
    """What MultiKueue makes in the cluster that it sends a job to: first the Workload, then the job."""
    origin = {"kueue.x-k8s.io/multikueue-origin": "elsewhere"}
    made = f"{name}-0123abcd-0"
    theirs = like["metadata"]
    labels = theirs["labels"] | {"elasticjob.dev/job-name": name} | origin
    described = {"name": made, "labels": labels, "annotations": theirs["annotations"]}
    head = {"apiVersion": like["apiVersion"], "kind": "Workload"}
    queues.kube.request("POST", queues.workloads_path, {**head, "metadata": described, "spec": like["spec"]})
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/prebuilt-workload-name": made} | origin
    job = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "spec": spec}
    queues.kube.request("POST", queues.jobs.path, {**job, "metadata": {"name": name, "labels": labels}})
