"""Commands that start no elastic agent, and the messages for their users."""

from __future__ import annotations

import pytest

from elasticjob_operator.model.launchers import find_foreign, find_overriding


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([], id="the image's own"),
        pytest.param(["torchrun", "train.py"], id="torchrun"),
        pytest.param(["/opt/venv/bin/elasticjob-run", "train.py"], id="elasticjob-run"),
        pytest.param(["python", "-m", "torch.distributed.run", "train.py"], id="torchrun as a module"),
        pytest.param(["sh", "-c", "pip install . && exec torchrun train.py"], id="in a shell"),
        pytest.param(["bash", "-c", "source env; python prepare.py; torchrun train.py"], id="after something else"),
        pytest.param(["accelerate", "launch", "--rdzv_backend", "elasticjob", "train.py"], id="accelerate, told"),
        pytest.param(["accelerate", "config"], id="another command of accelerate"),
        pytest.param(["python", "-m", "our.own.launcher"], id="a module that may start one"),
        pytest.param(["python", "train.py", "--x"], id="a script that may start one"),
        pytest.param(["sh", "-c", "cd /w && exec python t.py"], id="a script in a shell"),
        pytest.param(["/start.sh"], id="a program that may start one"),
        pytest.param(["sh", "-c", "echo 'unfinished"], id="no shell text"),
        pytest.param(["sh", "-c", ""], id="an empty shell text"),
        pytest.param(["env", "A=b"], id="nothing is started"),
    ],
)
def test_what_may_start_an_agent_is_left_alone(command: list[str]) -> None:
    assert find_foreign(command) is None


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        pytest.param(["env", "A=b", "deepspeed", "train.py", "a b"], "torchrun train.py 'a b'", id="behind env"),
        pytest.param(["accelerate", "launch", "--cpu", "t.py", "-v"], "torchrun t.py -v", id="accelerate"),
        pytest.param(["accelerate", "launch", "-m", "pack.train"], "torchrun SCRIPT", id="accelerate with a module"),
        pytest.param(["deepspeed", "--num_gpus=8", "t.py", "--ds", "c"], "torchrun t.py --ds c", id="deepspeed"),
        pytest.param(["mpirun", "-np", "4", "python", "t.py"], "torchrun t.py", id="mpirun"),
        pytest.param(["hyperpodrun", "--nnodes=2:2", "t.py"], "torchrun t.py", id="hyperpodrun"),
        pytest.param(["composer", "-n", "8", "t.py"], "torchrun t.py", id="composer"),
        pytest.param(["colossalai", "run", "--nproc_per_node", "8", "t.py"], "torchrun t.py", id="colossalai"),
    ],
)  # fmt: skip
def test_a_foreign_launcher_is_named_with_the_remedy(command: list[str], instead: str) -> None:
    found = find_foreign(command)
    assert found is not None
    assert f"write `{instead}`" in found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["torchrun", "train.py"], ()),
        (["torchrun", "--standalone", "train.py"], ("--standalone",)),
        (["torchrun", "--rdzv_backend=c10d", "--nnodes=2", "train.py"], ("--rdzv_backend",)),
        (["torchrun", "--rdzv-backend", "elasticjob", "train.py"], ()),
        (["python", "-m", "torch.distributed.run", "--rdzv-backend", "static", "train.py"], ("--rdzv-backend",)),
        (["torchrun", "train.py", "--standalone"], ()),
        (["sh", "-c", "cd /code; torchrun --standalone train.py | tee log"], ("--standalone",)),
        (["python", "train.py", "--standalone"], ()),
    ],
)
def test_arguments_that_choose_another_rendezvous(command: list[str], found: tuple[str, ...]) -> None:
    assert find_overriding(command) == found


@pytest.mark.timeout(20)  # a copy of what is left for each of the words takes minutes
def test_many_words_in_front_of_a_command_are_passed_over_once() -> None:
    assert find_foreign(["A=b"] * 200_000) is None
    assert find_foreign([*["A=b"] * 200_000, "deepspeed", "t.py"]) is not None
