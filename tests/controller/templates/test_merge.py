"""A template and a job make one spec: what the job says has precedence, and it is known what came from the template."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob_operator import api
from elasticjob_operator.api.podtemplate import trainer_container
from elasticjob_operator.templates.merge import merge

Spec = dict[str, Any]
KEYS = (
    "name",
    "env",
    "containers",
    "spec",
    "metadata",
    "annotations",
    "elasticjob.dev/trainer-container",
    "rendezvous",
)


def pod(*containers: Spec, **fields: Any) -> Spec:
    return {"template": {"spec": {"containers": list(containers), **fields}}}


@pytest.mark.parametrize(
    ("template", "job", "expected", "fields"),
    [
        pytest.param({"a": 1}, {}, {"a": 1}, ("a",), id="left-out"),
        pytest.param({"a": 1}, {"a": None}, {"a": 1}, ("a",), id="null-is-left-out"),
        pytest.param({"a": None}, {"a": 2}, {"a": 2}, (), id="null-in-the-template"),
        pytest.param({"a": 1}, {"a": 0, "b": 2}, {"a": 0, "b": 2}, (), id="the-job-has-precedence"),
        pytest.param(
            {"health": {"preflight": "Node", "hangTimeoutSeconds": 60}},
            {"health": {"hangTimeoutSeconds": 0}},
            {"health": {"preflight": "Node", "hangTimeoutSeconds": 0}},
            ("health.preflight",),
            id="field-by-field",
        ),
        pytest.param(
            {"elasticPolicy": {"replicaDiscreteValues": [2, 4], "maxRestarts": 3}},
            {"elasticPolicy": {"replicaDiscreteValues": [8]}},
            {"elasticPolicy": {"replicaDiscreteValues": [8], "maxRestarts": 3}},
            ("elasticPolicy.maxRestarts",),
            id="plain-lists-are-taken-whole",
        ),
        pytest.param(
            {"failurePolicy": {"rules": [{"action": "FailJob"}]}},
            {"failurePolicy": {"rules": []}},
            {"failurePolicy": {"rules": []}},
            (),
            id="an-empty-list-is-a-value",
        ),
        pytest.param(
            {"rendezvous": {"backend": "etcd-v2", "endpoint": "etcd:2379"}},
            {"rendezvous": {"backend": "c10d"}},
            {"rendezvous": {"backend": "c10d"}},
            (),
            id="half-a-rendezvous-is-none",
        ),
        pytest.param(
            {"template": "nonsense", "health": []},
            {"template": {"spec": {}}, "health": {"preflight": "Off"}},
            {"template": {"spec": {}}, "health": {"preflight": "Off"}},
            (),
            id="kinds-of-values-that-do-not-fit",
        ),
    ],
)
def test_fields(template: Spec, job: Spec, expected: Spec, fields: tuple[str, ...]) -> None:
    given = copy.deepcopy((template, job))
    merged = merge(template, job)
    assert merged.spec == expected
    assert merged.fields == fields
    assert (template, job) == given, "neither is changed"


def test_containers_merge_by_name_and_their_parts_too() -> None:
    template = pod(
        {
            "name": "worker",
            "image": "train:1",
            "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "LR", "valueFrom": {"secretKeyRef": {}}}],
            "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "ckpt", "mountPath": "/checkpoints"}],
            "livenessProbe": {"httpGet": {"port": 1}},
        },
        {"name": "log-shipper", "image": "logs:1"},
        tolerations=[{"key": "gpu"}],
        nodeSelector={"pool": "a", "disk": "ssd"},
        volumes=[{"name": "data", "hostPath": {"path": "/srv"}}],
    )
    job = pod(
        {
            "name": "worker",
            "command": ["torchrun", "train.py"],
            "env": [{"name": "LR", "value": "0.1"}, {"name": "SEED", "value": "1"}],
            "resources": {"limits": {"memory": "32Gi"}},
            "volumeMounts": [{"name": "mine", "mountPath": "/data"}],
            "livenessProbe": {"exec": {"command": ["true"]}},
        },
        nodeSelector={"pool": "b"},
        volumes=[{"name": "data", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}],
    )
    merged = merge(template, job)
    assert merged.spec["template"]["spec"] == {
        "containers": [
            {
                "name": "worker",
                "image": "train:1",
                "env": [
                    {"name": "NCCL_DEBUG", "value": "INFO"},
                    {"name": "LR", "value": "0.1"},
                    {"name": "SEED", "value": "1"},
                ],
                "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "32Gi"}},
                "volumeMounts": [{"name": "mine", "mountPath": "/data"}, {"name": "ckpt", "mountPath": "/checkpoints"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
                "command": ["torchrun", "train.py"],
            },
            {"name": "log-shipper", "image": "logs:1"},
        ],
        "tolerations": [{"key": "gpu"}],
        "nodeSelector": {"pool": "b", "disk": "ssd"},
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}],
    }
    worker = "template.spec.containers[worker]"
    assert merged.fields == (
        f"{worker}.image",
        f"{worker}.env[NCCL_DEBUG]",
        f"{worker}.resources.limits.nvidia.com/gpu",
        f"{worker}.volumeMounts[/checkpoints]",
        "template.spec.containers[log-shipper]",
        "template.spec.tolerations",
        "template.spec.nodeSelector.disk",
    )


TRAINS = "elasticjob.dev/trainer-container"


@pytest.mark.parametrize(
    ("template", "job", "order"),
    [
        pytest.param(["node"], ["worker"], ["worker"], id="another-name"),
        pytest.param(["node", "side"], ["worker", "mine"], ["worker", "side", "mine"], id="with-sidecars"),
        pytest.param(["side", "node*"], ["worker"], ["side", "worker"], id="annotated-in-the-template"),
        pytest.param(["node"], ["side", "worker*"], ["worker", "side"], id="annotated-in-the-job"),
        pytest.param(["side", "node*"], ["mine", "worker*"], ["side", "worker", "mine"], id="annotated-in-both"),
        pytest.param(["node", "worker"], ["worker"], ["node", "worker"], id="the-name-of-a-sidecar"),
        pytest.param([], ["worker"], ["worker"], id="none-in-the-template"),
    ],
)
def test_the_container_that_trains_is_one_however_it_is_called(
    template: list[str], job: list[str], order: list[str]
) -> None:
    def build(containers: list[str], **fields: Any) -> Spec:
        spec = pod(*({"name": name.strip("*")} | fields for name in containers))
        annotated = [name.strip("*") for name in containers if name.endswith("*")]
        spec["template"]["metadata"] = {"annotations": {TRAINS: annotated[0]} if annotated else {}}
        return spec

    spec = merge(build(template, image="i"), build(job, command=["c"])).spec
    assert [c["name"] for c in spec["template"]["spec"]["containers"]] == order
    parsed = api.parse_spec(spec)
    assert trainer_container(parsed.template) == "worker"
    trainer = next(c for c in parsed.template["spec"]["containers"] if c["name"] == "worker")
    assert trainer["command"] == ["c"]
    assert ("image" in trainer) == bool(template)


def test_requirements_are_installed_in_the_environment_of_the_templates_trainer() -> None:
    trainer = {"name": "node", "image": "train:1", "command": ["x"], "securityContext": {"runAsNonRoot": True}}
    installer = {"name": "elasticjob-packages", "command": ["python"], "env": [{"name": "A", "value": "1"}]}
    template = pod(trainer | {"env": [{"name": "PIP_INDEX_URL", "value": "https://mirror"}]})
    job = pod({"name": "worker"}, initContainers=[{"name": "other"}, installer])
    found = merge(template, job).spec["template"]["spec"]["initContainers"]
    assert found == [
        {"name": "other"},
        {
            "name": "elasticjob-packages",
            "image": "train:1",
            "command": ["python"],
            "env": [{"name": "PIP_INDEX_URL", "value": "https://mirror"}, {"name": "A", "value": "1"}],
            "securityContext": {"runAsNonRoot": True},
        },
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "b", "", "elasticjob-packages"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=25,
)
containers = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "b", "elasticjob-packages"])}, optional={"env": values}),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "health": values,
        "template": values
        | st.fixed_dictionaries(
            {"spec": st.fixed_dictionaries({}, optional={"containers": containers, "initContainers": containers})},
            optional={"metadata": st.fixed_dictionaries({}, optional={"annotations": values})},
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(specs, specs)
def test_nothing_that_an_api_server_may_store_is_too_much(template: Spec, job: Spec) -> None:
    """Whatever it is, it can be merged, and taking the same template again changes nothing."""
    once = merge(template, job).spec
    assert merge(template, once).spec == once
    assert merge(template, {}).spec == template
    assert merge({}, job).spec == job


def test_the_paths_of_what_a_template_gives_are_short() -> None:
    """Each begins with the names of all that it is in, and the status of the job has 64 of them."""
    name = "k" * 8_000
    template = {"template": {"spec": {name: {f"f{number}": 1 for number in range(1_000)}}}}
    merged = merge(template, {"template": {"spec": {name: {"mine": 1}}}})
    assert len(merged.spec["template"]["spec"][name]) == 1_001
    assert len(merged.fields) == 1_000
    assert max(map(len, merged.fields)) <= 300
