"""Fields of a pod template that nobody reads."""

from __future__ import annotations

from typing import Any

import pytest

from controller.builders import make_spec
from elasticjob_operator.api import bounds
from elasticjob_operator.model import misspelt, observe

LONG = "DuringScheduling"
TRAINER = {"name": "trainer", "image": "torch", "command": ["torchrun", "train.py"]}


def find(pod: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **template: Any) -> list[str]:
    spec = {"containers": [{**TRAINER, **(trainer or {})}], **(pod or {})}
    return list(misspelt.find_misspelt({"spec": spec, **template}))


@pytest.mark.parametrize(
    ("pod", "trainer", "told"),
    [
        pytest.param({"nodeselector": {"gpu": "h100"}}, {}, "spec.template.spec.nodeselector is no field there, and "
                     "the API server ignores it: did you mean spec.template.spec.nodeSelector?", id="small letters"),
        pytest.param({"toleration": []}, {}, "did you mean spec.template.spec.tolerations?", id="one of several"),
        pytest.param({"image_pull_secrets": []}, {}, "did you mean spec.template.spec.imagePullSecrets?",
                     id="as Python"),
        pytest.param({"priorityClass": "high"}, {}, "did you mean spec.template.spec.priorityClassName?",
                     id="a part of the name"),
        pytest.param({"volumeMounts": []}, {}, "belongs to the container: spec.template.spec.containers[]",
                     id="of the container"),
        pytest.param({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}, {}, "spec.template.spec."
                     "securityContext.capabilities is no field there, and the API server ignores it: capabilities "
                     "belongs to the container", id="capabilities of a pod"),
        pytest.param({}, {"nodeSelector": {"gpu": "h100"}}, "spec.template.spec.containers[0].nodeSelector is no field "
                     "there, and the API server ignores it: nodeSelector belongs to the pod: spec.template.spec",
                     id="of the pod"),
        pytest.param({}, {"limits": {"nvidia.com/gpu": 1}}, "limits belongs to its resources", id="of the resources"),
        pytest.param({}, {"privileged": True}, "privileged belongs to its securityContext", id="of the context"),
        pytest.param({}, {"resources": {"limit": {}}}, "did you mean spec.template.spec.containers[0].resources."
                     "limits?", id="limit"),
        pytest.param({}, {"env": [{"name": "A", "val": "b"}]}, "", id="too far away to be sure"),
        pytest.param({}, {"volumeMounts": [{"name": "a", "mountpath": "/a"}]},
                     "did you mean spec.template.spec.containers[0].volumeMounts[0].mountPath?", id="a mount"),
        pytest.param({"volumes": [{"name": "data", "pvc": {"claimName": "d"}}]}, {},
                     "spec.template.spec.volumes[0] has no source but pvc, which", id="a volume of no kind"),
        pytest.param({"volumes": [{"name": "data"}, {"name": "a", "emptyDir": {}}]}, {}, "",
                     id="a volume without a word"),
        pytest.param({"volumes": [{"name": "a", "emptyDir": {}, "emptydir": {}}]}, {},
                     "did you mean spec.template.spec.volumes[0].emptyDir?", id="a volume with two"),
        pytest.param({"evictionResponders": []}, {"gpuPartition": 1}, "", id="fields of a newer Kubernetes"),
        pytest.param({"nodeSelector": {"nodeselector": "x"}, "overhead": {"requests": {}}}, {}, "",
                     id="what is not looked at"),
        pytest.param({"dnsConfig": {"nameserver": []}}, {}, "did you mean spec.template.spec.dnsConfig.nameservers?",
                     id="of the DNS"),
        pytest.param({"affinity": {"nodeaffinity": {}}}, {}, "did you mean spec.template.spec.affinity.nodeAffinity?",
                     id="an affinity"),
        pytest.param({"affinity": {"nodeAffinity": {"requiredDuringScheduling": {}}}}, {},
                     "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution?", id="half of a long name"),
        pytest.param({"affinity": {"podAntiAffinity": {f"required{LONG}Requiredduringexecution": []}}}, {},
                     "podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution?", id="another long name"),
        pytest.param({"affinity": {"podAffinity": {f"preferred{LONG}IgnoredDuringExecution": [
                         {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelselector": {}}}]}}}, {},
                     "[0].podAffinityTerm.labelSelector?", id="a term"),
        pytest.param({"affinity": {"nodeAffinity": {f"required{LONG}IgnoredDuringExecution": {"nodeSelectorTerms": [
                         {"matchExpression": []}]}}}}, {}, "nodeSelectorTerms[0].matchExpressions?", id="of a node"),
        pytest.param({"topologySpreadConstraints": [{"maxSkew": 1, "labelSelector": {"matchlabels": {}}}]}, {},
                     "topologySpreadConstraints[0].labelSelector.matchLabels?", id="a selector of labels"),
        pytest.param({"volumes": [{"name": "shm", "emptyDir": {"sizelimit": "16Gi"}}]}, {},
                     "did you mean spec.template.spec.volumes[0].emptyDir.sizeLimit?", id="of a folder"),
        pytest.param({"volumes": [{"name": "a", "configMap": {"configMapName": "x"}}]}, {}, "",
                     id="the API server asks for the name"),
        pytest.param({}, {"livenessProbe": {"initialDelay": 60}},
                     "did you mean spec.template.spec.containers[0].livenessProbe.initialDelaySeconds?", id="a probe"),
        pytest.param({}, {"lifecycle": {"prestop": {}}}, "containers[0].lifecycle.preStop?", id="a hook"),
        pytest.param({}, {"securityContext": {"capabilities": {"Add": ["IPC_LOCK"]}}}, "capabilities.add?",
                     id="capitals"),
        pytest.param({}, {"env": [{"name": "A", "valueFrom": {"secretKeyref": {}}}]}, "valueFrom.secretKeyRef?",
                     id="a variable's source"),
    ],
)  # fmt: skip
def test_what_is_told(pod: dict[str, Any], trainer: dict[str, Any], told: str) -> None:
    found = find(pod, trainer)
    assert len(found) == (1 if told else 0)
    assert told in "".join(found)


def test_a_pod_without_its_spec_is_told() -> None:
    assert find(nodeSelector={}) == [
        "spec.template.nodeSelector is no field there, and the API server ignores it: nodeSelector belongs to "
        "spec.template.spec"
    ]


@pytest.mark.parametrize("kind", ["template", "pod"])
def test_a_field_of_the_job_is_told(kind: str) -> None:
    found = find(replicas=4) if kind == "template" else find({"nprocPerNode": 8})
    assert len(found) == 1 and found[0].endswith(" belongs to spec")


@pytest.mark.parametrize("value", [None, 1, "x", [1, None], {"spec": [1]}, {"spec": {"containers": {"a": 1}}}, {1: 2}])
def test_whatever_it_is(value: Any) -> None:
    assert list(misspelt.find_misspelt(value)) == []


def test_a_job_warns_of_a_few_of_them() -> None:
    spec = make_spec(1, 2).dump()
    spec["template"]["spec"]["nodeselector"] = {"gpu": "h100"}
    job = observe.observe_job({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec}, bounds.Limits())
    (notice,) = job.notices
    assert notice.reason == "UnknownField"
    assert "did you mean spec.template.spec.nodeSelector?" in notice.message
    assert job.spec is not None, "it is no reason to refuse the job"
