"""What the operator uses of a recent Kubernetes where it is served: PodGroups of its own scheduler, images as volumes.

The gangs need the control plane of Kubernetes 1.36: `KUBEBUILDER_ASSETS` has to name it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_devcluster import Cluster, NodeSpec, Tuning
from elasticjob_devcluster.flags import parse_version
from elasticjob_operator.api.podfields import POD_FIELDS
from operator_fixture import MERGE, Jobs, OperatorProcess, install_crd, light_spec, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

API = "scheduling.k8s.io/v1alpha2"
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
FLAGS = (
    *("--stable-seconds", "1", "--integrations", "gangs"),
    *("--runtime-image", "elasticjob/runtime:1", "--runtime-as-volume"),
)
BOUNDS = {"minReplicas": 2, "maxReplicas": 3}


def build_spec(**changes: Any) -> dict[str, Any]:
    """Light agents have no use for the runtime."""
    return light_spec(**{"elasticPolicy": BOUNDS, "replicas": 2, "runtimeInjection": "Never", **changes})


@pytest.fixture(scope="module")
def lasting_operator(operator_factory: Callable[..., OperatorProcess]) -> Iterator[OperatorProcess]:
    """The operator of `jobs`."""
    operator = operator_factory(FLAGS)
    yield operator
    operator.stop()


def test_groups_that_are_not_served_are_not_written(operator: OperatorProcess, jobs: Jobs) -> None:
    """Kubernetes 1.20 serves other kinds in the version that has them in 1.37."""
    jobs.create("job", build_spec())
    jobs.await_world("job", 2)
    assert all("schedulingGroup" not in pod["spec"] for pod in jobs.pods("job"))
    assert jobs.condition("job", "Degraded").get("status") != "True"
    assert "the cluster serves no PodGroup in scheduling.k8s.io/v1beta1 or" in operator.log


def test_the_runtime_comes_as_the_cluster_can(operator: OperatorProcess, jobs: Jobs, cluster: Cluster) -> None:
    """The pods have no node: whether one can mount an image is its own matter."""
    spec = build_spec(runtimeInjection="Always")
    spec["template"]["spec"]["nodeSelector"] = {"there-is": "none"}
    jobs.create("job", spec)
    pod = wait_for(lambda: jobs.pods("job"), "it has pods")[0]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "elasticjob-runtime"]
    is_recent = parse_version(cluster.version) >= (1, 36)
    image = {"reference": "elasticjob/runtime:1", "pullPolicy": "IfNotPresent"}
    assert volume == {"name": "elasticjob-runtime", **({"image": image} if is_recent else {"emptyDir": {}})}
    assert [c["name"] for c in pod.get("initContainers", ())] == ([] if is_recent else ["elasticjob-runtime"])
    assert ("the cluster has no image volumes" in operator.log) is not is_recent


def test_the_runtime_comes_into_a_restricted_namespace(operator: OperatorProcess, jobs: Jobs, cluster: Cluster) -> None:
    if parse_version(cluster.version) < (1, 25):
        pytest.skip("the API server enforces Pod Security from Kubernetes 1.25 on")
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    jobs.kube.request("PATCH", f"/api/v1/namespaces/{jobs.namespace}", label, content_type=MERGE)
    spec = build_spec(runtimeInjection="Always")
    pod = spec["template"]["spec"]
    pod["nodeSelector"] = {"there-is": "none"}
    pod["securityContext"] = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    jobs.create("job", spec)
    wait_for(lambda: jobs.pods("job"), "its pods are admitted", 20)


KINDS = {
    "template": "PodTemplateSpec",
    "pod": "PodSpec",
    "container": "Container",
    "resources": "ResourceRequirements",
    "securityContext of a pod": "PodSecurityContext",
    "securityContext": "SecurityContext",
    "mount": "VolumeMount",
    "volume": "Volume",
    "variable": "EnvVar",
    "source": "EnvFromSource",
    "toleration": "Toleration",
    "port": "ContainerPort",
    "affinity": "Affinity",
    "affinity to nodes": "NodeAffinity",
    "affinity to pods": "PodAntiAffinity",
    "selector of nodes": "NodeSelector",
    "term of nodes": "NodeSelectorTerm",
    "weight of nodes": "PreferredSchedulingTerm",
    "term of pods": "PodAffinityTerm",
    "weight of pods": "WeightedPodAffinityTerm",
    "selector of labels": "LabelSelector",
    "spread": "TopologySpreadConstraint",
    "DNS": "PodDNSConfig",
    "probe": "Probe",
    "lifecycle": "Lifecycle",
    "hook": "LifecycleHandler",
    "capabilities": "Capabilities",
    "folder": "EmptyDirVolumeSource",
    "origin": "EnvVarSource",
}
RENAMED = {"LifecycleHandler": "Handler"}  # as old API servers call it


def find_served(definitions: dict[str, Any], kind: str) -> set[str]:
    places = (f"io.k8s.api.core.v1.{kind}", f"io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")
    return set(next(definitions[place] for place in places if place in definitions)["properties"])


def test_every_field_of_a_pod_is_known(cluster: Cluster) -> None:
    """Else a right one could be taken for a misspelt one."""
    definitions = cluster.kube.request("GET", "/openapi/v2", timeout=60)["definitions"]
    old = "io.k8s.api.core.v1.LifecycleHandler" not in definitions
    names = {kind: RENAMED.get(name, name) if old else name for kind, name in KINDS.items()}
    served = {kind: find_served(definitions, name) for kind, name in names.items()}
    assert {kind: fields - POD_FIELDS[kind] for kind, fields in served.items() if fields - POD_FIELDS[kind]} == {}
    assert set(KINDS) == set(POD_FIELDS)


def has_gates() -> bool:
    """Whether the control plane that is named knows the gates, and the API in this version."""
    program = Path(os.environ.get("KUBEBUILDER_ASSETS", "")) / "kube-apiserver"
    if not program.is_file():
        return False
    told = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return parse_version(told) == (1, 36)


@pytest.fixture(scope="module")
def gangs(cluster_factory: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Jobs on a cluster with the gates of Kubernetes 1.36, and room for three pods of 10 thousandths of a CPU."""
    if not has_gates():
        pytest.skip("set KUBEBUILDER_ASSETS to the control plane of Kubernetes 1.36 to try its gangs")
    tuning = Tuning(
        apiserver_flags=(GATES, f"--runtime-config={API}=true"),
        controller_manager_flags=(GATES,),
        scheduler_flags=(GATES,),
    )
    cluster = cluster_factory(nodes=[NodeSpec("node-0", cpu="30m")], tuning=tuning)
    install_crd(cluster)
    operator = OperatorProcess(cluster, tmp_path_factory.mktemp("operator"), *FLAGS)
    operator.start()
    cluster.make_namespace("gangs")
    yield Jobs(cluster, "gangs")
    operator.stop()
    print(f"the operator said:\n{operator.log[-8000:]}")  # pytest shows it where a test failed


def test_a_gang_is_placed_whole_or_not_at_all(gangs: Jobs) -> None:
    jobs = gangs
    jobs.create("first", build_spec())
    before = jobs.await_world("first", 2, timeout=150)
    path = f"/apis/{API}/namespaces/{jobs.namespace}/podgroups/first"
    group = wait_for(lambda: jobs.kube.get(path), "it has a group")
    assert group["spec"]["schedulingPolicy"]["gang"] == {"minCount": 2}
    jobs.create("second", build_spec())
    wait_for(lambda: len(find_unscheduled(jobs, "second")) == 2, "the scheduler has looked at both")
    assert [p["spec"].get("nodeName") for p in jobs.pods("second")] == [None, None], "although one has room"
    jobs.scale("first", 3)
    grown = jobs.await_world("first", 3, above=before["rendezvous"]["generation"])
    assert sorted("schedulingGroup" in pod["spec"] for pod in jobs.pods("first")) == [False, True, True]
    jobs.patch("first", {"elasticPolicy": {"minReplicas": 1}})
    jobs.scale("first", 1)
    jobs.await_world("first", 1, above=grown["rendezvous"]["generation"])
    jobs.await_world("second", 2)
    assert jobs.condition("first", "Degraded").get("status") != "True", "a group that cannot change is no problem"


def find_unscheduled(jobs: Jobs, name: str) -> list[str]:
    """The pods that the scheduler could not place."""
    return [
        pod["metadata"]["name"]
        for pod in jobs.pods(name)
        if any(c["type"] == "PodScheduled" and c["status"] == "False" for c in pod["status"].get("conditions", ()))
    ]
