"""The spec: defaults, error messages, and the same invalid examples rejected by validators and by CEL."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller.builders import TEMPLATE
from elasticjob_operator import api

RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
RESTARTS_ALL = {"restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn"}}]}


def spec(**fields: Any) -> dict[str, Any]:
    return {"template": copy.deepcopy(TEMPLATE), **fields}


# (before, after, field): refused while the job runs, allowed while it is suspended.
BAD_CHANGES = [
    pytest.param(spec(), spec(nprocPerNode=2), "nprocPerNode", id="nproc"),
    pytest.param(spec(nprocPerNode=2), spec(nprocPerNode="gpu"), "nprocPerNode", id="nproc-word"),
    pytest.param(spec(), spec(rendezvous={"backend": "c10d"}), "rendezvous.backend", id="backend"),
    pytest.param(spec(rendezvous={"backend": "static"}), spec(), "rendezvous.backend", id="backend-left-out"),
    pytest.param(
        spec(rendezvous={"backend": "c10d", "endpoint": "a:1"}),
        spec(rendezvous={"backend": "c10d"}),
        "rendezvous.endpoint",
        id="endpoint",
    ),
    pytest.param(
        spec(rendezvous={"backend": "c10d"}),
        spec(rendezvous={"backend": "c10d", "conf": {"timeout": "9"}}),
        "rendezvous.conf",
        id="conf",
    ),
]
BAD_HANDOVERS = [
    pytest.param(spec(), spec(managedBy="me"), id="taken"),
    pytest.param(spec(), spec(runPolicy={"managedBy": "me", "suspend": True}), id="taken-while-it-is-suspended"),
    pytest.param(spec(managedBy="me"), spec(), id="returned"),
    pytest.param(spec(managedBy="me"), spec(managedBy="you"), id="passed-on"),
]
BAD_TEMPLATES = [
    pytest.param(spec(templateRef={"name": "a"}), spec(templateRef={"name": "b"}), id="another-one"),
    pytest.param(spec(templateRef={"name": "a"}), spec(), id="given-up"),
    pytest.param(spec(), spec(templateRef={"name": "a"}), id="named-later"),
]
GOOD_CHANGES = [
    pytest.param(
        spec(templateRef={"name": "a"}),
        spec(templateRef={"kind": "ElasticJobTemplate", "name": "a"}, elasticPolicy={"maxReplicas": 2}),
        id="the-same-template",
    ),
    pytest.param(spec(), spec(managedBy="elasticjob.dev/operator"), id="our-own-name"),
    pytest.param(spec(runPolicy={"managedBy": "me"}), spec(managedBy="me"), id="the-new-place-of-managedBy"),
    pytest.param(spec(), spec(nprocPerNode="auto", rendezvous={}), id="defaults-written-out"),
    pytest.param(spec(nprocPerNode="2"), spec(nprocPerNode=2), id="number-as-text"),
    pytest.param(spec(rendezvous={"backend": "operator"}), spec(rendezvous={"conf": {}}), id="empty-conf"),
    pytest.param(
        spec(replicas=1),
        spec(replicas=3, elasticPolicy={"maxReplicas": 4}, health={"preflight": "Node"}),
        id="sizes",
    ),
]

METRICS = [{"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "30"}}}]

# Refused by the rules across fields: (spec, where, what is said). `test_crd_cluster.py` feeds the same
# examples to the CEL rules of a real API server.
BAD_ACROSS_FIELDS = [
    pytest.param(
        spec(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}),
        "spec.elasticPolicy",
        "minReplicas must not be greater than maxReplicas: lower minReplicas or raise maxReplicas",
        id="min-above-max",
    ),
    pytest.param(
        spec(elasticPolicy={"replicaIncrementStep": 2, "replicaDiscreteValues": [2]}),
        "spec.elasticPolicy",
        "replicaIncrementStep and replicaDiscreteValues exclude each other: remove one of them",
        id="step-and-values",
    ),
    pytest.param(
        spec(elasticPolicy={"replicaIncrementStep": 2, "mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}),
        "spec.elasticPolicy",
        "mesh and replicaIncrementStep exclude each other: remove replicaIncrementStep, since worlds have whole copies "
        "of the model with mesh",
        id="step-and-mesh",
    ),
    pytest.param(
        spec(elasticPolicy={"mesh": [{"name": "dp", "size": 2}, {"name": "tp", "size": 2}]}),
        "spec.elasticPolicy",
        "mesh needs one dimension without a size, which grows and shrinks: leave out the size of one, or add one",
        id="mesh-that-cannot-grow",
    ),
    pytest.param(
        spec(elasticPolicy={"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}, {"name": "tp", "size": 2}]}),
        "spec.elasticPolicy",
        "mesh has two dimensions of the same name: rename one of them",
        id="mesh-of-two-alike",
    ),
    pytest.param(
        spec(nprocPerNode="cpu", elasticPolicy={"mesh": [{"name": "dp"}, {"name": "tp", "size": 2}]}),
        "spec",
        "elasticPolicy.mesh needs equally many processes in all pods: set nprocPerNode to a number, gpu or auto",
        id="mesh-of-pods-that-differ",
    ),
    pytest.param(
        spec(elasticPolicy={"minReplicas": 2, "metrics": METRICS}),
        "spec.elasticPolicy",
        "metrics needs maxReplicas: say how many pods the autoscaler may ask for",
        id="metrics-without-max",
    ),
    pytest.param(
        spec(scaling={"mode": "Goodput"}, elasticPolicy={"maxReplicas": 4, "metrics": METRICS}),
        "spec",
        "scaling.mode Goodput and elasticPolicy.metrics exclude each other: both choose the number of pods",
        id="goodput-and-metrics",
    ),
    pytest.param(
        spec(rendezvous={"backend": "etcd-v2"}),
        "spec.rendezvous",
        "rendezvous.endpoint is required by the backend etcd-v2: give host:port of the etcd server",
        id="etcd-without-endpoint",
    ),
    pytest.param(
        spec(managedBy="kueue.x-k8s.io/multikueue", runPolicy={"managedBy": "elasticjob.dev/operator"}),
        "spec",
        "managedBy and runPolicy.managedBy name different controllers: remove runPolicy.managedBy",
        id="two-managers",
    ),
    pytest.param(
        spec(scaling={"mode": "Goodput"}, elasticPolicy={"minReplicas": 1}),
        "spec",
        "scaling.mode Goodput needs elasticPolicy.maxReplicas: say how many pods the job may have",
        id="goodput-without-max",
    ),
    *(
        pytest.param(
            spec(health={"rules": [{"name": "A", "when": {"metric": {"name": "loss", "notFinite": True}}, **rule}]}),
            where,
            message,
            id=f"health-rule-{name}",
        )
        for name, rule, where, message in (
            (
                "without-action",
                {"from": "Newest"},
                "spec.health.rules[0]",
                "from and atMost are for the actions Restart and Replace: remove them, or choose one of these",
            ),
            (
                "that-only-reports",
                {"action": "Report", "atMost": 2},
                "spec.health.rules[0]",
                "from and atMost are for the actions Restart and Replace: remove them, or choose one of these",
            ),
            (
                "for-restarts",
                {"when": {"noProgress": 3}, "forSeconds": 5},
                "spec.health.rules[0]",
                "forSeconds needs when.metric: remove it",
            ),
            (
                "without-pod",
                {"when": {"noProgress": 3}, "action": "Replace"},
                "spec.health.rules[0]",
                "the action Replace is for rules that name a pod: use when.metric or when.log, or Restart",
            ),
            (
                "with-two-causes",
                {"when": {"noProgress": 3, "slow": {"firstStepSeconds": 9}}},
                "spec.health.rules[0].when",
                "when needs exactly one of metric, log, noProgress and slow",
            ),
            (
                "with-two-bounds",
                {"when": {"metric": {"name": "loss", "above": 1, "below": 0}}},
                "spec.health.rules[0].when.metric",
                "a metric needs exactly one of notFinite, above, below, sigma and fallsPercent: write two rules",
            ),
            (
                "that-waits-for-lines",
                {"when": {"log": "ECC"}, "forSeconds": 5},
                "spec.health.rules[0]",
                "forSeconds needs when.metric: remove it",
            ),
            (
                "without-limit",
                {"when": {"slow": {}}},
                "spec.health.rules[0].when.slow",
                "slow needs exactly one of firstStepSeconds and checkpointSeconds",
            ),
        )
    ),
    pytest.param(
        spec(health={"rules": [{"name": "A", "when": {"noProgress": 1}}, {"name": "A", "when": {"noProgress": 2}}]}),
        "spec.health",
        "two rules have the same name: give each its own",
        id="health-rules-with-one-name",
    ),
    pytest.param(
        spec(failurePolicy={"rules": [{"action": "FailJob"}]}),
        "spec.failurePolicy.rules[0]",
        "a rule needs exactly one of onExitCodes and onPodConditions",
        id="rule-without-condition",
    ),
    pytest.param(
        spec(
            failurePolicy={
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": [1]},
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            }
        ),
        "spec.failurePolicy.rules[0]",
        "a rule needs exactly one of onExitCodes and onPodConditions",
        id="rule-with-both-conditions",
    ),
    pytest.param(
        spec(checkpoints={"path": "/checkpoints"}, rendezvous={"backend": "c10d"}),
        "spec",
        "checkpoints needs the rendezvous backend operator: remove checkpoints or rendezvous.backend",
        id="checkpoints-without-agents",
    ),
    pytest.param(
        spec(checkpoints={"path": "/checkpoints", "from": {"archive": "s3://bucket/ns/job/uid"}}),
        "spec.checkpoints",
        "checkpoints.from needs checkpoints.archive: say where this job keeps its own checkpoints",
        id="from-without-archive",
    ),
    *(
        pytest.param(
            spec(checkpoints={"path": "/checkpoints", "archive": {"to": "s3://bucket"}, "from": {"step": 7} | named}),
            "spec.checkpoints.from",
            "checkpoints.from needs either job, a job of this namespace, or archive, the folder of any job",
            id=f"from-{len(named)}",
        )
        for named in ({}, {"job": "other", "archive": "s3://bucket/ns/other/uid"})
    ),
    pytest.param(
        spec(replicas=5, elasticPolicy={"maxReplicas": 4}),
        "spec",
        api.Spec.CEL_OF_JOBS[0][1],
        id="replicas-above-max",
    ),
    pytest.param(
        spec(replicas=1, elasticPolicy={"minReplicas": 2}),
        "spec",
        api.Spec.CEL_OF_JOBS[1][1],
        id="replicas-below-min",
    ),
    pytest.param(
        spec(elasticPolicy={"minReplicas": 2, "maxReplicas": 4, "replicaDiscreteValues": [1, 8]}),
        "spec",
        "elasticPolicy.replicaDiscreteValues has no value between minReplicas and maxReplicas: add one",
        id="no-legal-value",
    ),
]


def test_a_volume_beside_the_checkpoints_is_none_of_theirs() -> None:
    container = {"name": "a", "volumeMounts": [{"name": "d", "mountPath": "/data"}, {"mountPath": "/checkpoints-old"}]}
    raw = {"checkpoints": {"path": "/checkpoints"}, "template": {"spec": {"containers": [container]}}}
    assert api.parse_spec(raw).checkpoints == api.Checkpoints(path="/checkpoints")


@pytest.mark.parametrize(("raw", "field", "message"), BAD_ACROSS_FIELDS)
def test_rules_across_fields(raw: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(api.InvalidJobError) as caught:
        api.parse_spec(raw)
    assert [(p.field, p.message) for p in caught.value.problems] == [(field, message)]


@pytest.mark.parametrize(
    ("raw", "field", "message"),
    [
        pytest.param(None, "spec", "is required: set at least spec.template", id="no-spec"),
        pytest.param({}, "spec.template", "is required", id="no-template"),
        pytest.param(
            spec(elasticPolicy={"minReplica": 2}),
            "spec.elasticPolicy.minReplica",
            "is not a field of ElasticJob: did you mean spec.elasticPolicy.minReplicas?",
            id="misspelt",
        ),
        pytest.param(
            spec(maxReplicas=2),
            "spec.maxReplicas",
            "is not a field of ElasticJob: did you mean spec.elasticPolicy.maxReplicas?",
            id="misplaced",
        ),
        pytest.param(
            spec(zebra=2), "spec.zebra", "is not a field of ElasticJob: check the spelling, or remove it", id="unknown"
        ),
        pytest.param(spec(replicas=0), "spec.replicas", "input should be greater than or equal to 1", id="no-replicas"),
        pytest.param(
            spec(nprocPerNode="many"),
            "spec.nprocPerNode",
            "must be 'auto', 'cpu', 'gpu' or a number of processes, from 1 to 1024",
            id="nproc",
        ),
        pytest.param(
            spec(health={"hangTimeoutSeconds": "soon"}),
            "spec.health.hangTimeoutSeconds",
            "must be 'auto' or a number of seconds (0 turns it off), at most 10000000",
            id="hang-timeout",
        ),
        *(
            pytest.param(
                {
                    "checkpoints": {"path": "/data/checkpoints"},
                    "template": {"spec": {"containers": [{"name": "a", "volumeMounts": [{"mountPath": where}]}]}},
                },
                "spec",
                f"checkpoints.path /data/checkpoints is on the volume mounted at {where.rstrip('/')}: remove "
                "checkpoints if the volume keeps the files, or choose another path",
                id=f"checkpoints-on-a-volume-{i}",
            )
            for i, where in enumerate(("/data/checkpoints", "/data/", "/data/checkpoints/old"))
        ),
        *(
            pytest.param(
                spec(checkpoints={"path": "/checkpoints", "archive": {"to": to}}),
                "spec.checkpoints.archive.to",
                "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///PATH: of letters, "
                "digits, '.', '_', '=' and '-', and no part of it begins with a dot or a dash",
                id=f"archive-{to}",
            )
            for to in (
                *("s3://bucket/../other", "s3://bucket/.hidden", "s3://bucket//x", "file:///data/../etc", "file:///"),
                *("http://x/y", "s3://u:p@bucket/x", "s3://bucket/x?versionId=1", "/data", "memory://x", "s3://b/\n"),
            )
        ),
        pytest.param(
            spec(checkpoints={"path": "/checkpoints", "archive": {"to": "file:///archive/jobs"}}),
            "spec",
            "checkpoints.archive.to file:///archive/jobs is on no volume of the template, so it would be lost with the "
            "pod: mount one that outlives the pods",
            id="archive-in-the-pod",
        ),
        pytest.param(
            spec(checkpoints={"path": "/checkpoints", "sizeLimit": "large"}),
            "spec.checkpoints.sizeLimit",
            "large is not a quantity",
            id="checkpoints-size",
        ),
        pytest.param(
            {"template": {}},
            "spec.template",
            "spec is missing: set a pod template with spec.containers",
            id="template-without-spec",
        ),
        *(
            pytest.param(
                {"template": {"metadata": metadata, "spec": {"containers": [{"name": "a"}]}}},
                "spec.template",
                message,
                id=f"template-metadata-{i}",
            )
            for i, (metadata, message) in enumerate(
                (
                    (["x"], "metadata must be an object with labels and annotations, or be left out"),
                    ({"labels": ["x"]}, "metadata.labels must map names to texts"),
                    ({"labels": {"a": 1}}, "metadata.labels[a] must be a text: quote numbers, true and false"),
                    (
                        {"annotations": {"a": "b", "sidecar.istio.io/inject": False}},
                        "metadata.annotations[sidecar.istio.io/inject] must be a text: quote numbers, true and false",
                    ),
                    ({"labels": {"a": None}}, "metadata.labels[a] is empty: write its value, or leave it out"),
                )
            )
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": ["a"]}]}}},
            "spec.template",
            "spec.containers[0].name is missing: every container needs a name",
            id="template-container-name-no-text",
        ),
        pytest.param(
            {"template": {"spec": {"containers": []}}},
            "spec.template",
            "spec.containers is empty: add at least one container; the first one trains",
            id="no-containers",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a"}, {"image": "a"}]}}},
            "spec.template",
            "spec.containers[1].name is missing: every container needs a name",
            id="nameless-container",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a"}, None]}}},
            "spec.template",
            "spec.containers[1] must be a container: `- name: …` with its fields, or no item at all",
            id="null-container",
        ),
        pytest.param(
            {"template": {"spec": {"containers": {"name": "a", "image": "a"}}}},
            "spec.template",
            "spec.containers must be a list: write `- name: …` for each container",
            id="containers-no-list",
        ),
        pytest.param(
            {"template": {"containers": [{"name": "a"}]}},
            "spec.template",
            "spec is missing: set a pod template with spec.containers",
            id="containers-beside-spec",
        ),
        pytest.param(
            {"template": {"spec": {"restartPolicy": "Always", "containers": [{"name": "a"}]}}},
            "spec.template",
            "spec.restartPolicy must be Never or left out, not Always: the operator replaces pods",
            id="restart-policy",
        ),
        pytest.param(
            {
                "template": {
                    "metadata": {"annotations": {"elasticjob.dev/trainer-container": "b"}},
                    "spec": {
                        "containers": [
                            {"name": "a", "restartPolicy": "Always"},
                            {"name": "b", "restartPolicy": "OnFailure"},
                        ]
                    },
                }
            },
            "spec.template",
            "spec.containers[1].restartPolicy must be Never or left out, not OnFailure: the operator replaces pods",
            id="restart-policy-of-the-trainer",
        ),
        pytest.param(
            {
                "template": {
                    "spec": {"containers": [{"name": "a", "restartPolicy": "Never", "restartPolicyRules": RULES}]}
                }
            },
            "spec.template",
            "spec.containers[0].restartPolicyRules must be left out: the operator replaces pods, and decides by exit "
            "code where spec.failurePolicy.rules have onExitCodes",
            id="restarts-of-the-trainer-by-exit-code",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b", **RESTARTS_ALL}]}}},
            "spec.template",
            "spec.initContainers[0].restartPolicyRules restarts all containers, the trainer too: remove the action "
            "RestartAllContainers",
            id="restarts-of-all-containers",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a", "args": ["--epochs", 3]}]}}},
            "spec.template",
            "spec.containers[0].args must be a list of texts: quote numbers, true and false",
            id="a number among the arguments",
        ),
        *(
            pytest.param(
                {"template": {"spec": {**pod, "containers": [{"name": "a", **container}]}}},
                "spec.template",
                f"{told} is empty: write its value, or leave it out",
                id=f"nothing in {told}",
            )
            for pod, container, told in (
                ({}, {"command": ["torchrun", None]}, "spec.containers[0].command[1]"),
                ({}, {"env": [None, {"name": "A"}]}, "spec.containers[0].env[0]"),
                ({}, {"resources": {"limits": {"memory": None}}}, "spec.containers[0].resources.limits[memory]"),
                ({"overhead": {"cpu": None}}, {}, "spec.overhead[cpu]"),
                ({"tolerations": [None]}, {}, "spec.tolerations[0]"),
            )
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "EPOCHS", "value": 3}]}]}}},
            "spec.template",
            "spec.containers[0].env[EPOCHS].value must be a text: quote numbers, true and false",
            id="a number in the environment",
        ),
        pytest.param(
            {"template": {"spec": {"nodeSelector": {"gpu": True}, "containers": [{"name": "a"}]}}},
            "spec.template",
            "spec.nodeSelector[gpu] must be a text: quote numbers, true and false",
            id="a flag as a label",
        ),
        pytest.param(
            {"template": {"spec": {"os": {"name": "windows"}, "containers": [{"name": "a"}]}}},
            "spec.template",
            "spec.os.name is windows, and workers run on Linux only: remove it",
            id="windows",
        ),
        pytest.param(
            {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}, "containers": [{"name": "a"}]}}},
            "spec.template",
            "spec.nodeSelector[kubernetes.io/os] is windows, and workers run on Linux only: remove it",
            id="nodes of windows",
        ),
        pytest.param(
            {
                "template": {
                    "metadata": {"annotations": {"elasticjob.dev/trainer-container": "b"}},
                    "spec": {"containers": [{"name": "a"}]},
                }
            },
            "spec.template",
            "metadata.annotations[elasticjob.dev/trainer-container] names 'b', which is not a container: use one of a",
            id="trainer-unknown",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b", "env": {"A": "1"}}]}}},
            "spec.template",
            "spec.containers[1].env must be a list of objects",
            id="environment-as-map",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "a"}], "initContainers": [{"resources": {"limits": 1}}]}}},
            "spec.template",
            "spec.initContainers[0].resources.limits must be an object",
            id="limits-of-an-init-container",
        ),
    ],
)
def test_messages_name_the_field_and_the_remedy(raw: Any, field: str, message: str) -> None:
    with pytest.raises(api.InvalidJobError) as caught:
        api.parse_spec(raw)
    assert [(p.field, p.message) for p in caught.value.problems] == [(field, message)]


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(api.InvalidJobError) as caught:
        api.parse_spec(spec(replicas=0, runPolicy={"activeDeadlineSeconds": 0}))
    assert [p.field for p in caught.value.problems] == ["spec.replicas", "spec.runPolicy.activeDeadlineSeconds"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, (1, 1, 1), id="one-pod"),
        pytest.param({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}, (1, 4, 4), id="elastic"),
        pytest.param({"replicas": 3}, (3, 3, 3), id="fixed"),
        pytest.param({"replicas": 3, "elasticPolicy": {"maxReplicas": 4}}, (1, 4, 3), id="wanted-below-max"),
        pytest.param({"elasticPolicy": {"minReplicas": 2}}, (2, 2, 2), id="only-min"),
    ],
)
def test_defaults_of_sizes(fields: dict[str, Any], expected: tuple[int, int, int]) -> None:
    parsed = api.parse_spec(spec(**fields))
    assert (parsed.min_replicas, parsed.max_replicas, parsed.wanted) == expected


def test_a_minimal_job_has_the_documented_defaults() -> None:
    parsed = api.parse_spec(spec())
    assert parsed.rendezvous.backend == "operator"
    assert parsed.nproc_per_node == "auto"
    assert parsed.success_policy == "All"
    assert parsed.run_policy.clean_pod_policy == "Running"
    assert parsed.elastic_policy.graceful_shutdown_timeout_seconds == 30
    assert parsed.elastic_policy.max_restarts == 10


def test_status_survives_its_own_dump() -> None:
    status = api.Status(phase=api.Phase.RUNNING, rendezvous=api.RendezvousStatus(generation=3), replicas=2)
    assert api.Status.model_validate(status.dump()) == status
    assert "" not in status.dump().values()


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        (("replica",), "did you mean spec.replicas?"),
        (("nproc_per_node",), "did you mean spec.nprocPerNode?"),
        (("maxRestarts",), "did you mean spec.elasticPolicy.maxRestarts?"),
        (("suspend",), "did you mean spec.runPolicy.suspend?"),
        (("parallelism",), "set spec.replicas"),
        (("runPolicy", "backoffLimit"), "set spec.elasticPolicy.maxRestarts"),
        (("schedulerName",), "it belongs to spec.template.spec"),
        (("volumeMounts",), "it belongs to spec.template.spec.containers[]"),
        (("policies",), "write the pods in spec.template"),
        (("replicatedJobs",), "write the pods in spec.template"),
        (("restartPolicy",), "remove it: the operator replaces pods"),
        (("somethingElse",), "check the spelling, or remove it"),
    ],
)
def test_advice_for_an_unknown_field(path: tuple[str, ...], advice: str) -> None:
    assert api.advise(path) == advice


def test_advice_for_another_kind_of_job() -> None:
    assert "kubectl elasticjob convert" in api.advise(("pytorchReplicaSpecs",))
