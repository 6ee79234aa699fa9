"""Each supported kind in the form its project publishes, and the result for every field of it."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import pytest
import yaml

from controller.convert.hostile import mutate, outcomes
from elasticjob_operator import api, convert
from elasticjob_operator.convert import ConversionError

PYTORCHJOB_ELASTIC = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: elastic-imagenet, namespace: team-a, uid: abc, resourceVersion: "7", labels: {owner: me}}
spec:
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: 1
    maxReplicas: 3
    maxRestarts: 100
    metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: pytorch
            image: example.com/imagenet:1
            env:
            - {name: LOGLEVEL, value: DEBUG}
            - {name: MASTER_PORT, value: "23456"}
            command: [python, -m, torch.distributed.run, /workspace/train.py, --epochs, "10"]
            ports: [{name: pytorchjob-port, containerPort: 23456}]
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 60, activeDeadlineSeconds: 3600, backoffLimit: 4}
"""

PYTORCHJOB_MASTER = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: dist-mnist}
spec:
  nprocPerNode: "4"
  runPolicy:
    backoffLimit: 3
    suspend: true
    schedulingPolicy: {queue: research, priorityClass: high, minAvailable: 3}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: pytorch, image: example.com/mnist:1, args: [--backend, nccl]}]}}
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: pytorch, image: example.com/mnist:1, args: [--backend, gloo]}]}}
"""

TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fine-tune}
spec:
  runtimeRef: {name: torch-distributed, kind: ClusterTrainingRuntime, apiGroup: trainer.kubeflow.org}
  initializer: {dataset: {storageUri: "hf://squad"}}
  trainer:
    image: example.com/tune:2
    command: [torchrun, --nnodes=2, tune.py]
    numNodes: 2
    numProcPerNode: 8
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
    env: [{name: LR, value: "0.1"}]
  podTemplateOverrides:
  - targetJobs: [{name: node}]
    spec:
      nodeSelector: {pool: a100}
      containers:
      - {name: node, volumeMounts: [{name: data, mountPath: /data}]}
      - {name: sidecar, volumeMounts: [{name: logs, mountPath: /logs}]}
      volumes: [{name: data, emptyDir: {}}]
  - targetJobs: [{name: dataset-initializer}]
    spec: {serviceAccountName: loader}
"""

TORCHELASTIC = """
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: imagenet, namespace: elastic-job}
spec:
  rdzvEndpoint: "etcd-service:2379"
  minReplicas: 1
  maxReplicas: 2
  replicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template:
        metadata: {creationTimestamp: null}
        spec:
          containers:
          - name: elasticjob-worker
            image: example.com/examples:0.2
            imagePullPolicy: Always
            args: ["--nproc_per_node=1", "/workspace/main.py", "--arch", "resnet18", "--nnodes", "script's own"]
            resources: {limits: {nvidia.com/gpu: 1}}
"""

DLROVER = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: torch-mnist, namespace: dlrover}
spec:
  distributionStrategy: AllreduceStrategy
  optimizeMode: single-job
  enableElasticScheduling: true
  replicaSpecs:
    master: {replicas: 1, template: {spec: {containers: [{name: main, image: example.com/master:1}]}}}
    worker:
      replicas: 3
      restartCount: 3
      template:
        spec:
          restartPolicy: Always
          containers:
          - name: main
            image: example.com/mnist:1
            command:
            - /bin/bash
            - -c
            - "NCCL_DEBUG=INFO dlrover-run --network-check --nnodes=1:$NODE_NUM \\
              --nproc_per_node=2 --max_restarts=3 train.py"
"""


def converted(text: str) -> tuple[dict[str, Any], list[str]]:
    document = yaml.safe_load(text)
    before = copy.deepcopy(document)
    result = convert.convert(document)
    assert document == before, "the source must not change"
    api.parse_spec(result.manifest["spec"])
    assert result.manifest["apiVersion"] == "elasticjob.dev/v1alpha1"
    return result.manifest, [w.field for w in result.warnings]


def test_elastic_pytorchjob() -> None:
    job, warnings = converted(PYTORCHJOB_ELASTIC)
    assert job["metadata"] == {"name": "elastic-imagenet", "namespace": "team-a", "labels": {"owner": "me"}}
    assert job["spec"] == {
        "replicas": 2,
        "elasticPolicy": {
            "minReplicas": 1,
            "maxReplicas": 3,
            "maxRestarts": 100,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
                }
            ],
        },
        "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 3600},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "pytorch",
                        "image": "example.com/imagenet:1",
                        "env": [{"name": "LOGLEVEL", "value": "DEBUG"}],
                        "command": ["python", "-m", "torch.distributed.run", "/workspace/train.py", "--epochs", "10"],
                    }
                ]
            }
        },
    }
    assert warnings == [
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env[MASTER_PORT]",
        "spec.elasticPolicy.rdzvBackend",
        "spec.runPolicy.backoffLimit",
    ]


def test_settings_of_a_rendezvous_that_is_dropped_are_named() -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC)
    document["spec"]["elasticPolicy"] |= {"rdzvConf": [{"key": "timeout", "value": "900"}]}
    _, warnings = converted(yaml.safe_dump(document))
    assert "spec.elasticPolicy.rdzvConf[timeout]" in warnings


def test_metrics_without_a_maximum_are_dropped() -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC)
    del document["spec"]["elasticPolicy"]["maxReplicas"]
    job, warnings = converted(yaml.safe_dump(document))
    assert "spec.elasticPolicy.metrics" in warnings
    assert "metrics" not in job["spec"]["elasticPolicy"]


def test_pytorchjob_with_a_master_becomes_equal_pods() -> None:
    job, warnings = converted(PYTORCHJOB_MASTER)
    spec = job["spec"]
    assert spec["replicas"] == 3
    assert spec["nprocPerNode"] == 4
    assert spec["runPolicy"] == {"suspend": True}
    assert spec["elasticPolicy"] == {"maxRestarts": 3, "restartWindowSeconds": 0}
    assert spec["failurePolicy"]["rules"][0]["action"] == "FailJob"
    assert spec["template"]["spec"]["priorityClassName"] == "high"
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    assert set(warnings) == {
        "spec.pytorchReplicaSpecs.Master.template",
        "spec.pytorchReplicaSpecs.Worker.restartPolicy",
        "spec.runPolicy.schedulingPolicy.queue",
        "spec.runPolicy.schedulingPolicy.minAvailable",
    }


def test_pytorchjob_keeps_an_etcd() -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC)
    document["spec"]["elasticPolicy"] |= {"rdzvBackend": "etcd", "rdzvHost": "etcd", "rdzvPort": 2379}
    job, warnings = converted(yaml.safe_dump(document))
    assert job["spec"]["rendezvous"] == {"backend": "etcd-v2", "endpoint": "etcd:2379"}
    assert "spec.elasticPolicy.rdzvBackend" in warnings


def test_trainjob() -> None:
    job, warnings = converted(TRAINJOB)
    spec = job["spec"]
    assert spec["replicas"] == 2
    assert spec["nprocPerNode"] == 8
    assert spec["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 2}
    assert spec["template"]["spec"] == {
        "containers": [
            {
                "name": "node",
                "image": "example.com/tune:2",
                "command": ["torchrun", "tune.py"],
                "env": [{"name": "LR", "value": "0.1"}],
                "resources": {"limits": {"nvidia.com/gpu": 8}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "nodeSelector": {"pool": "a100"},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    assert set(warnings) == {
        "spec.runtimeRef",
        "spec.initializer.dataset",
        "spec.podTemplateOverrides[0].spec.containers",
        "spec.podTemplateOverrides[1]",
    }


def test_another_controller_is_named_at_the_top() -> None:
    document = yaml.safe_load(TRAINJOB)
    document["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    job, _ = converted(yaml.safe_dump(document))
    assert job["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    assert "runPolicy" not in job["spec"]


def test_trainjob_that_says_little_asks_for_the_rest() -> None:
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "bare"},
        "spec": {"runtimeRef": {"name": "torch-distributed"}},
    }
    result = convert.convert(document)
    assert {w.field for w in result.warnings} == {
        "spec.trainer.image",
        "spec.trainer.command",
        "spec.trainer.numNodes",
        "spec.runtimeRef",
    }


def test_torchelastic() -> None:
    job, warnings = converted(TORCHELASTIC)
    spec = job["spec"]
    assert spec["replicas"] == 2
    assert spec["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 2}
    assert spec["nprocPerNode"] == 1
    assert "rendezvous" not in spec
    container = spec["template"]["spec"]["containers"][0]
    assert container["command"] == ["torchrun"]
    assert container["args"] == ["/workspace/main.py", "--arch", "resnet18", "--nnodes", "script's own"]
    assert "metadata" not in spec["template"]
    assert set(warnings) == {
        "spec.replicaSpecs.Worker.template.spec.containers[].command",
        "spec.replicaSpecs.Worker.restartPolicy",
        "spec.rdzvEndpoint",
    }


def test_dlrover() -> None:
    job, warnings = converted(DLROVER)
    spec = job["spec"]
    assert spec["replicas"] == 3
    assert spec["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 3}
    assert spec["nprocPerNode"] == 2
    assert spec["template"]["spec"]["containers"][0]["command"][2] == "NCCL_DEBUG=INFO torchrun train.py"
    assert set(warnings) == {
        "spec.replicaSpecs.master",
        "spec.replicaSpecs.worker.template.spec.containers[]",
        "spec.replicaSpecs.worker.template.spec.restartPolicy",
        "spec.replicaSpecs.worker.restartCount",
        "spec.optimizeMode",
        "spec.enableElasticScheduling",
    }


@pytest.mark.parametrize(
    ("command", "kept", "policy", "nproc"),
    [
        pytest.param(
            ["torchrun", "--nnodes", "1:4", "--nproc-per-node", "auto", "a.py"],
            ["torchrun", "a.py"],
            {"minReplicas": 1, "maxReplicas": 4},
            "auto",
            id="values in words of their own",
        ),
        pytest.param(
            ["torchrun", "--log-dir", "/l", "--max_restarts=2", "-m", "pkg", "--max-restarts", "9"],
            ["torchrun", "--log-dir", "/l", "-m", "pkg", "--max-restarts", "9"],
            {"maxRestarts": 2},
            None,
            id="what follows the module is its own",
        ),
        pytest.param(
            ["python", "train.py", "--nnodes=3"], ["python", "train.py", "--nnodes=3"], None, None, id="no launcher"
        ),
        pytest.param(
            ["bash", "-c", "torchrun --nnodes=2 train.py"],
            ["bash", "-c", "torchrun --nnodes=2 train.py"],
            None,
            None,
            id="a shell line stays",
        ),
    ],
)
def test_arguments_of_the_launcher(
    command: list[str], kept: list[str], policy: dict[str, int] | None, nproc: object
) -> None:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": command}]}}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}},
    }
    job, warnings = converted(yaml.safe_dump(document))
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == kept
    assert job["spec"].get("elasticPolicy") == policy
    assert job["spec"].get("nprocPerNode") == nproc
    assert bool(warnings) == ("-c" in command)


@pytest.mark.parametrize("text", [PYTORCHJOB_ELASTIC, PYTORCHJOB_MASTER, TRAINJOB, TORCHELASTIC, DLROVER])
def test_an_unknown_field_is_never_lost_in_silence(text: str) -> None:
    document = yaml.safe_load(text)
    document["spec"]["newField"] = 1
    assert convert.is_convertible(document)
    fields = [w.field for w in convert.convert(document).warnings]
    assert "spec.newField" in fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"kind": "TFJob"}, "TFJob of kubeflow.org/v1 is not known", id="another kind"),
        pytest.param({"metadata": {}}, "metadata.name: is required", id="no name"),
        pytest.param({"spec": None}, "spec: is required", id="no spec"),
        pytest.param({"spec": {"pytorchReplicaSpecs": {}}}, "give a Worker or a Master", id="no role"),
        pytest.param(
            {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": "two"}}}},
            "spec.pytorchReplicaSpecs.Worker.replicas: must be a whole number, not 'two'",
            id="no number",
        ),
        pytest.param(
            {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": []}}}}}},
            "template.spec.containers: is required",
            id="no container",
        ),
        pytest.param(
            {"spec": {"nprocPerNode": "many", "pytorchReplicaSpecs": {
                "Worker": {"template": {"spec": {"containers": [{"image": "i"}]}}}}}},
            "spec.nprocPerNode: must be 'auto', 'cpu', 'gpu' or a number",
            id="refused by our own rules",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_names_the_field(change: dict[str, Any], message: str) -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC) | change
    with pytest.raises(ConversionError) as caught:
        convert.convert(document)
    assert message in str(caught.value)


def test_no_replicas_means_suspended() -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC)
    document["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    job, _ = converted(yaml.safe_dump(document))
    assert job["spec"]["runPolicy"]["suspend"] is True


def test_a_second_container_that_trains_is_named() -> None:
    document = yaml.safe_load(PYTORCHJOB_ELASTIC)
    containers = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "sidecar", "image": "s"})
    job, _ = converted(yaml.safe_dump(document))
    assert job["spec"]["template"]["metadata"]["annotations"] == {"elasticjob.dev/trainer-container": "pytorch"}


@pytest.mark.parametrize("text", [PYTORCHJOB_ELASTIC, PYTORCHJOB_MASTER, TRAINJOB, TORCHELASTIC, DLROVER])
def test_a_value_of_another_kind_gives_a_result_or_one_message(text: str) -> None:
    assert outcomes(mutate(yaml.safe_load(text))) == {"converted", "refused"}


def double(lines: int, value: str = "x" * 8) -> str:
    doubled = "".join(f"export V{n + 1}=$V{n}$V{n}\n" for n in range(lines))
    return f"#!/bin/bash\n#SBATCH --nodes=2\nexport V0={value}\n{doubled}srun torchrun train.py\n"


GROWING = [
    pytest.param(double(24), id="each variable is twice the one before"),
    pytest.param(double(0, "x" * 9_000) + "export B=" + "$V0" * 5_000 + "\n", id="one variable many times"),
    pytest.param(
        double(0, "x" * 9_000) + "".join(f"A{n}=$V0\n" for n in range(2_000)), id="one variable in many others"
    ),
    pytest.param(double(0, "x" * 9_000).replace("train.py", "train.py " + "$V0 " * 4_000), id="in many arguments"),
]


@pytest.mark.parametrize("script", GROWING)
def test_variables_of_a_script_make_it_no_longer_than_one_may_be(script: str) -> None:
    """Half a kilobyte of somebody else's took 300 MiB, and twice as much for each further line."""
    document = convert.read_text(script)
    tracemalloc.start()
    try:
        with pytest.raises(ConversionError, match="characters with the values of its variables"):
            convert.convert(document)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * 2**20
