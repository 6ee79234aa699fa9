"""Jobs whose ranks another launcher starts: MPIJob, RayJob, TorchX applications, Slurm batch scripts."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.convert.hostile import mutate, outcomes
from elasticjob_operator import api, convert
from elasticjob_operator.convert import ConversionError

SOURCES = Path(__file__).parent / "sources"


def read(name: str) -> dict[str, Any]:
    text = (SOURCES / name).read_text()
    document: dict[str, Any] = convert.read_text(text) or yaml.safe_load(text)
    return document


def converted(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec, and the warnings by field."""
    before = copy.deepcopy(document)
    result = convert.convert(document)
    assert document == before, "the source must not change"
    api.parse_spec(result.manifest["spec"])
    return result.manifest, {warning.field: warning.message for warning in result.warnings}


def test_mpijob() -> None:
    job, warnings = converted(read("mpijob.yaml"))
    assert job["spec"] == {
        "replicas": 2,
        "nprocPerNode": 4,
        "elasticPolicy": {"maxRestarts": 2, "restartWindowSeconds": 0},
        "runPolicy": {"cleanPodPolicy": "Running"},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "mpi-worker",
                        "image": "example.com/resnet:1",
                        "command": ["torchrun", "/opt/train.py", "--model", "resnet50", "-np", "1"],
                        "env": [{"name": "LR", "value": "0.1"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
                        "resources": {"limits": {"nvidia.com/gpu": 4}},
                    }
                ]
            }
        },
    }
    command = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[].command"
    told = [w.message for w in convert.convert(read("mpijob.yaml")).warnings if w.field == command]
    assert [text.partition(" was")[0] for text in told][1:] == [
        "-np 8",
        "--allow-run-as-root",
        "-bind-to none",
        "-mca pml ob1",
        "-x PATH",
    ]
    assert "mpirun became torchrun" in told[0]
    assert told[1].endswith("decide it") and all(text.endswith("was dropped") for text in told[2:-1])
    assert set(warnings) == {
        command,
        "spec.mpiReplicaSpecs.Launcher.template.spec.containers[].env",
        "spec.mpiReplicaSpecs.Worker.template.spec.containers[].readinessProbe",
        "spec.sshAuthMountPath",
    }


def test_rayjob() -> None:
    job, warnings = converted(read("rayjob.yaml"))
    assert job["spec"] == {
        "replicas": 2,
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "runPolicy": {"ttlSecondsAfterFinished": 60},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "ray-worker",
                        "image": "example.com/ray:1",
                        "command": ["torchrun", "train.py", "--epochs", "3"],
                        "env": [{"name": "LR", "value": "0.1"}],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    }
                ]
            }
        },
    }
    assert "replace what the script calls of Ray" in warnings["spec.entrypoint"]
    assert set(warnings) == {
        "spec.entrypoint",
        "spec.runtimeEnvYAML.pip",
        "spec.submissionMode",
        "spec.ttlSecondsAfterFinished",
        "spec.rayClusterSpec.headGroupSpec",
        "spec.rayClusterSpec.workerGroupSpecs[0].rayStartParams",
        "spec.rayClusterSpec.workerGroupSpecs[1]",
    }


@pytest.mark.parametrize(
    ("named", "kept"), [("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"), ("ray.io/kuberay-operator", None)]
)
def test_another_controller_of_a_rayjob_is_kept(named: str, kept: str | None) -> None:
    document = read("rayjob.yaml")
    document["spec"]["managedBy"] = named
    assert converted(document)[0]["spec"].get("managedBy") == kept


def test_the_head_is_the_worker_of_a_rayjob_without_workers() -> None:
    document = read("rayjob.yaml")
    del document["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    job, _ = converted(document)
    assert job["spec"]["replicas"] == 1
    assert job["spec"]["template"]["spec"]["containers"][0]["name"] == "ray-head"


def test_torchx_application() -> None:
    job, warnings = converted(read("torchx.txt"))
    assert job["metadata"] == {"name": "train"}
    assert job["spec"] == {
        "replicas": 4,
        "nprocPerNode": 8,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 3},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "train",
                        "image": "a/b:1",
                        "command": [
                            *("torchrun", "--tee", "3", "--role", "", "train.py"),
                            *("--lr", "0.1", "--name", "${app_id}"),
                        ],
                        "env": [{"name": "A", "value": "b"}, {"name": "LOGLEVEL", "value": "WARNING"}],
                        "resources": {
                            "requests": {"cpu": "2", "memory": "1024M"},
                            "limits": {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 1},
                        },
                        "volumeMounts": [
                            {"name": "mount-0", "mountPath": "/data", "readOnly": True},
                            {"name": "mount-1", "mountPath": "/checkpoints"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "mount-0", "hostPath": {"path": "/srv/data"}},
                    {"name": "mount-1", "persistentVolumeClaim": {"claimName": "claim"}},
                ],
            }
        },
    }
    assert set(warnings) == {"app.roles[0].env.TORCHX_JOB_ID", "app.roles[0].args"}
    assert warnings["app.roles[0].args"] == "${app_id} is only known to TorchX: write the value"


def test_torchx_prints_a_batch_script_below_its_application() -> None:
    text = (SOURCES / "torchx.txt").read_text() + "#SBATCH --job-name=train-0\nsrun torchrun train.py\n"
    assert convert.read_text(text) == read("torchx.txt")


def test_a_torchx_application_as_yaml_is_the_same() -> None:
    printed = read("torchx.txt")
    assert converted(yaml.safe_load(yaml.safe_dump(printed))) == converted(printed)


def test_slurm_script() -> None:
    job, warnings = converted(read("train.sbatch"))
    assert job["metadata"] == {"name": "llama-ft"}
    assert job["spec"] == {
        "replicas": 4,
        "nprocPerNode": 8,
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
        "runPolicy": {"activeDeadlineSeconds": 36 * 3600},
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "REPLACE-ME",
                        "command": [
                            *("torchrun", "train.py", "--data", "/data/tokens"),
                            *("--nodes", "${SLURM_NNODES}", "two words"),
                        ],
                        "env": [{"name": "OMP_NUM_THREADS", "value": "8"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
                        "resources": {
                            "requests": {"cpu": "32", "memory": "480Gi"},
                            "limits": {"nvidia.com/gpu": 8},
                        },
                    }
                ]
            }
        },
    }
    assert set(warnings) == {
        *(f"line {number}" for number in (13, 14, 16, 17, 18, 22)),
        *(f"#SBATCH --{name}" for name in ("time", "partition", "output")),
        "srun --cpu-bind",
        "image",
    }
    assert warnings["line 17"] == "nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) ) was left out"
    assert warnings["line 13"] == "module load cuda/12.4 was left out: the image has the software"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["srun torchrun a.py"], {"command": ["torchrun", "a.py"]}, id="little"),
        pytest.param(["torchrun a.py > log 2>&1 &", "wait"], {"command": ["torchrun", "a.py"]}, id="redirected"),
        pytest.param(
            ["cd /w && srun python -m torch.distributed.run a.py"],
            {"command": ["python", "-m", "torch.distributed.run", "a.py"], "workingDir": "/w"},
            id="folder",
        ),
        pytest.param(["srun bash -c 'exec torchrun --nnodes=3 a.py'"], {"command": ["torchrun", "a.py"]}, id="shell"),
        pytest.param(
            ["srun apptainer exec --nv i.sif torchrun a.py"], {"command": ["torchrun", "a.py"]}, id="apptainer"
        ),
        pytest.param(
            ["srun --container-image=nvcr.io#nvidia/pytorch:1 -u torchrun a.py  # don't"],
            {"command": ["torchrun", "a.py"], "image": "nvcr.io/nvidia/pytorch:1"},
            id="pyxis",
        ),
        pytest.param(["python prepare.py", "srun torchrun a.py"], {"command": ["torchrun", "a.py"]}, id="prepared"),
        pytest.param(
            ["#SBATCH --ntasks-per-node=4", "srun python a.py -x"],
            {"command": ["torchrun", "a.py", "-x"]},
            id="ranks of Slurm",
        ),
        pytest.param(
            ["srun accelerate launch --num_processes 8 a.py"], {"command": ["torchrun", "a.py"]}, id="accelerate"
        ),
        pytest.param(
            ["A=b srun torchrun a.py"],
            {"command": ["torchrun", "a.py"], "env": [{"name": "A", "value": "b"}]},
            id="assigned",
        ),
        pytest.param(
            ["#SBATCH --gres=gpu:v100:2", "srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE a.py"],
            {"command": ["torchrun", "a.py"], "resources": {"limits": {"nvidia.com/gpu": 2}}},
            id="gres",
        ),
        pytest.param(
            ["#SBATCH --mem-per-cpu=2G -c4", "srun torchrun a.py"],
            {"command": ["torchrun", "a.py"], "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}},
            id="mem",
        ),
        pytest.param(
            ["#SBATCH --mem=999999999K", "srun torchrun a.py"],
            {"command": ["torchrun", "a.py"], "resources": {"requests": {"memory": "999999999Ki"}}},
            id="the longest number",
        ),
        pytest.param(
            ["srun torchrun --rdzv_endpoint=$(hostname):1 --nproc-per-node=$N a.py $1"],
            {"command": ["torchrun", "a.py", "$1"]},
            id="computed",
        ),
    ],
)
def test_commands_of_slurm_scripts(lines: list[str], expected: dict[str, Any]) -> None:
    document = convert.read_text("\n".join(["#!/bin/bash", *lines]))
    assert document is not None
    job, _ = converted(document)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container == {"name": "trainer", "image": "REPLACE-ME"} | expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-0", 86400), ("1-1:30", 91800), ("1-0:0:1", 86401)],
)
def test_time_limits_of_slurm(text: str, seconds: int) -> None:
    document = convert.read_text(f"#!/bin/sh\n#SBATCH -t {text}\nsrun torchrun a.py")
    assert document is not None
    assert converted(document)[0]["spec"]["runPolicy"] == {"activeDeadlineSeconds": seconds}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("#!/bin/sh\necho hi", "no command that starts a training", id="nothing"),
        pytest.param(
            "#!/bin/sh\nsrun torchrun a.py\nsrun torchrun b.py", "lines 2, 3: each starts a training", id="two"
        ),
        pytest.param("#SBATCH hetjob\nsrun torchrun a.py", "line 1: hetjob: has no counterpart", id="hetjob"),
        pytest.param("#SBATCH --nodes=a\ntorchrun a.py", "#SBATCH --nodes=a: must be a number", id="nodes"),
        pytest.param(
            "#SBATCH --nodes=8-2\ntorchrun a.py", "#SBATCH --nodes=8-2: must be a number, or a range", id="range"
        ),
        pytest.param("#SBATCH -c 0\ntorchrun a.py", "#SBATCH --cpus-per-task=0: must be a number above 0", id="cpus"),
        pytest.param("#SBATCH --mem=lots\ntorchrun a.py", "#SBATCH --mem=lots: must be", id="memory"),
        pytest.param("#SBATCH -t 30000-0\ntorchrun a.py", "must be less than 68 years", id="a long time"),
        pytest.param("#SBATCH -t 99999999999999999999-23\ntorchrun a.py", "must be minutes", id="a longer time"),
        pytest.param("#SBATCH -t soon\ntorchrun a.py", "#SBATCH --time=soon: must be minutes", id="time"),
        pytest.param(
            "#SBATCH --comment 'x\ntorchrun a.py", "line 1: cannot be read: No closing quotation", id="quotes"
        ),
        pytest.param("#SBATCH nodes 4\ntorchrun a.py", "'nodes' is not an option of sbatch", id="no option"),
        pytest.param("#!/bin/sh\nsrun bash -c 'cd /w; torchrun a.py'", "more than one command", id="shell"),
        pytest.param("#!/bin/sh\ntorchrun a.py" + " x" * 600_000, "more than 1000000 characters", id="long"),
    ],
)
def test_scripts_that_cannot_be_converted_name_the_line(script: str, message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert.convert(convert.read_text(script))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "=== APPLICATION ===\n{'roles': [f()]}",
        "=== APPLICATION ===\n" + "[" * 5000,
        "=== APPLICATION ===",
        "=== APPLICATION ===\n1",
    ],
)
def test_an_output_of_torchx_that_is_not_literals_is_refused(text: str) -> None:
    with pytest.raises(ConversionError, match="is not followed by what"):
        convert.read_text(text)


@pytest.mark.parametrize("text", ["", "kind: PyTorchJob", "a: '=== APPLICATION === no'"])
def test_other_texts_are_yaml(text: str) -> None:
    assert convert.read_text(text) is None


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/convert.md").read_text()
    script, rest = text.partition("```bash\n")[2].split("```", 1)
    warnings, rest = rest.partition("```\n")[2].split("```", 1)
    manifest = rest.partition("```yaml\n")[2].partition("```")[0]
    document = convert.read_text(script)
    assert document is not None
    result = convert.convert(document)
    assert result.manifest == yaml.safe_load(manifest)
    assert [f"warning: llama: {warning}" for warning in result.warnings] == warnings.splitlines()


def mpijob(command: list[str], **launcher: Any) -> dict[str, Any]:
    document = read("mpijob.yaml")
    container = document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    container |= {"command": command, "args": [], **launcher}
    return document


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(["sh", "-c", "mpirun -n 2 \\\n python3 a.py"], ["torchrun", "a.py"], id="shell"),
        pytest.param(["horovodrun", "-np", "8", "-H", "a:4,b:4", "python", "a.py"], ["torchrun", "a.py"], id="horovod"),
        pytest.param(["mpirun", "python", "-m", "pkg.a", "-m"], ["torchrun", "-m", "pkg.a", "-m"], id="module"),
        pytest.param(
            ["deepspeed", "--hostfile", "/h", "a.py", "--zero", "2"],
            ["torchrun", "a.py", "--zero", "2"],
            id="deepspeed",
        ),
        pytest.param(["accelerate", "launch", "--module", "pkg"], ["torchrun", "-m", "pkg"], id="accelerate"),
        pytest.param(["mpirun", "env", "A=b", "torchrun", "--nnodes=2", "a.py"], ["torchrun", "a.py"], id="torchrun"),
    ],
)
def test_commands_of_launchers(command: list[str], expected: list[str]) -> None:
    job, warnings = converted(mpijob(command))
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == expected
    assert warnings


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param([], "containers[].command: is required", id="of the image"),
        pytest.param(["mpirun", "-n", "2", "/home/mpiuser/pi"], "pi is not a Python script", id="a program of MPI"),
        pytest.param(["mpirun", "-n", "2"], "has no command", id="nothing"),
        pytest.param(["mpirun", "python", "-c", "1"], "is not a Python script", id="code"),
        pytest.param(["sh", "-c", "sleep 1; mpirun python a.py"], "more than one shell command", id="two commands"),
        pytest.param(["deepspeed", "--include", "x"], "names no script", id="no script"),
        pytest.param(["sh", "-c", "mpirun 'python"], "more than one shell command", id="quotes"),
    ],
)
def test_commands_that_cannot_be_converted_name_the_field(command: list[str], message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert.convert(mpijob(command))
    assert message in str(caught.value)
    assert str(caught.value).startswith("spec.mpiReplicaSpecs.Launcher")


@pytest.mark.parametrize("name", ["mpijob.yaml", "rayjob.yaml", "torchx.txt", "train.sbatch"])
def test_hostile_and_partial_documents_give_a_result_or_one_message(name: str) -> None:
    document = read(name)
    text = (SOURCES / name).read_text()
    changed = list(mutate(document))
    lines = text.splitlines()
    chance = random.Random(1)
    for _ in range(200 if name == "train.sbatch" else 0):
        some = [line[: chance.randrange(len(line) + 1)] if chance.random() < 0.2 else line for line in lines]
        changed.append(convert.read_text("\n".join(["#!/bin/sh", *some])))
    assert outcomes(changed) == {"converted", "refused"}


@pytest.mark.parametrize(
    "line", ["x" * 300_000, "$(" * 200_000, "`" * 64_000], ids=["a word", "commands", "backquotes"]
)
def test_a_line_that_would_take_minutes_is_named(line: str) -> None:
    """To read the words of a line takes as long as its square."""
    document = convert.read_text(f"#!/bin/bash\n#SBATCH --nodes=2\n{line}\nsrun torchrun train.py\n")
    assert document is not None
    with pytest.raises(ConversionError, match="line 3: has more than 16384 characters"):
        convert.convert(document)
    with pytest.raises(ConversionError, match="more than one shell command"):
        convert.convert(mpijob(["sh", "-c", line * 5]))
