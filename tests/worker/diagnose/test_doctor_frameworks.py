"""What the doctor says of launchers, adapters and versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticjob.diagnose import frameworks
from elasticjob.diagnose.findings import OK, SKIP, WARN
from elasticjob.diagnose.frameworks import Process
from elasticjob.integrations import versions


@pytest.mark.parametrize(
    ("commands", "status", "words"),
    [
        pytest.param([["/usr/bin/python3", "/usr/bin/torchrun", "a.py"]], OK, "torchrun", id="torchrun"),
        pytest.param([["python", "-u", "-m", "torch.distributed.run", "a.py"]], OK, "torch.distributed.run", id="-m"),
        pytest.param([["sh", "-c", "x"], ["elasticjob-run", "a.py"]], OK, "elasticjob-run", id="below a shell"),
        pytest.param([["torchrun", "a.py"], ["srun", "hostname"]], OK, "torchrun", id="a program of the script"),
        pytest.param([["python", "/usr/bin/accelerate", "launch", "--x", "a.py", "-v"]], WARN, "`torchrun a.py -v`",
                     id="accelerate"),
        pytest.param([["python", "/usr/bin/accelerate", "env"]], WARN, "start the script with torchrun", id="other"),
        pytest.param([["python3.11", "/usr/bin/deepspeed", "--num_gpus=2", "a.py"]], WARN, "`torchrun a.py`",
                     id="deepspeed"),
        pytest.param([["mpirun", "-np", "2", "python", "a.py"]], WARN, "`torchrun a.py`", id="mpirun"),
        pytest.param([["horovodrun", "x"]], WARN, "`torchrun SCRIPT`", id="no script"),
        pytest.param([["python", "a.py"]], WARN, "start the script with torchrun", id="python"),
        pytest.param([["python"]], WARN, "start the script with torchrun", id="nothing"),
        pytest.param([], WARN, "start the script with torchrun", id="none"),
    ],
)  # fmt: skip
def test_the_launcher_of_this_container(commands: list[list[str]], status: str, words: str) -> None:
    found = frameworks.judge_launcher([Process(tuple(command)) for command in commands])
    assert found.status == status
    assert words in f"{found.detail} {found.remedy}"


@pytest.mark.parametrize(
    ("text", "adapter"),
    [
        ("from transformers import Trainer\nimport accelerate", "elasticjob.integrations.transformers"),
        ("import lightning.pytorch as pl", "elasticjob.integrations.lightning"),
        ("if True:\n    import pytorch_lightning", "elasticjob.integrations.lightning"),
        ("from accelerate import Accelerator", "elasticjob.integrations.accelerate"),
        ("from trl import SFTTrainer", "elasticjob.integrations.transformers"),
        ("import torch\n# import transformers", None),
        ("import transformers\nfrom elasticjob.integrations.transformers import ElasticJobCallback", None),
        ("", None),
    ],
)
def test_a_script_without_the_adapter_of_its_framework(text: str, adapter: str | None) -> None:
    found = frameworks.judge_script("/w/a.py", text)
    if adapter is None:
        assert found is None
    else:
        assert found is not None
        assert "/w/a.py uses" in found.detail
        assert found.remedy.rpartition(" ")[2] == adapter


@pytest.mark.parametrize(
    ("text", "environ", "is_told"),
    [
        ("import torch_xla.core.xla_model as xm", {"PJRT_DEVICE": "CPU"}, True),
        ("import torch_xla", {"PJRT_DEVICE": "CPU", "WORLD_SIZE": "2"}, True),
        ("import torch_xla", {"PJRT_DEVICE": "CPU", "WORLD_SIZE": "1"}, False),
        ("import torch_xla", {"PJRT_DEVICE": "TPU"}, False),
        ("import torch_xla", {}, False),
        ("import torch", {"PJRT_DEVICE": "CPU"}, False),
    ],
)
def test_a_script_whose_torch_xla_sees_one_process(text: str, environ: dict[str, str], is_told: bool) -> None:
    found = frameworks.judge_xla("/w/a.py", text, environ)
    assert (found is not None) == is_told
    if found is not None:
        assert found.status == WARN
        assert "/w/a.py uses torch_xla with PJRT_DEVICE=CPU" in found.detail


def test_versions_that_are_too_old_are_named() -> None:
    installed = {"transformers": "5.1.0", "lightning": "2.1.0"}
    assert frameworks.judge_versions(installed.get) == (
        ["transformers 5.1.0", "lightning 2.1.0"],
        [
            "elasticjob.integrations.lightning needs lightning 2.4 or newer, and 2.1.0 is installed: "
            "pip install 'lightning>=2.4'"
        ],
    )
    assert frameworks.judge_versions(lambda package: None) == ([], [])


def test_every_adapter_exists() -> None:
    root = Path(versions.__file__).parent
    for stack in versions.STACKS:
        assert (root / f"{stack.adapter.rpartition('.')[2]}.py").exists()


def test_processes_are_read_with_their_folders(tmp_path: Path) -> None:
    place = tmp_path / "7"
    place.mkdir()
    (place / "cmdline").write_bytes(b"torchrun\0train.py\0--x\0")
    (place / "cwd").symlink_to("/work/dir")
    (tmp_path / "8").mkdir()  # has ended
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cmdline").write_bytes(b"")  # a thread of the kernel
    (tmp_path / "9" / "cwd").symlink_to("/")
    (tmp_path / "self").mkdir()
    found = frameworks.read_processes(tmp_path)
    assert found == [Process(("torchrun", "train.py", "--x"), "/work/dir")]
    assert frameworks.find_script(found[0]) == "/work/dir/train.py"
    assert frameworks.read_processes(tmp_path / "none") == []


def test_outside_of_a_job_there_is_no_launcher_to_look_for() -> None:
    assert frameworks.check_launcher({}).status == SKIP
    assert frameworks.check_launcher({"ELASTICJOB_HUB_URL": "wss://hub"}).status in (OK, WARN)
    assert frameworks.check_frameworks({}).status in (OK, WARN)
