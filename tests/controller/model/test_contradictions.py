"""What is said of a command that starts no agent, or an agent that does not reach the operator."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator import api
from elasticjob_operator.model import contradictions

SIDE = {"name": "logs", "image": "i"}


def spec_of(*others: dict[str, Any], **trainer: Any) -> api.Spec:
    containers = [{"name": "worker", "image": "i", **trainer}, *others]
    return api.parse_spec({"template": {"spec": {"containers": containers}}})


@pytest.mark.parametrize(
    ("spec", "told", "untold"),
    [
        pytest.param(
            spec_of(command=["python", "a.py"]), ["tart the script with torchrun"], ["annotation"], id="python"
        ),
        pytest.param(
            spec_of(SIDE, command=["envoy"]),
            ["tart the script with torchrun", "elasticjob.dev/trainer-container", "logs"],
            [],
            id="another container may be the trainer",
        ),
        pytest.param(spec_of(), ["has no command", "torchrun"], [], id="the image's entry point"),
        pytest.param(
            spec_of(command=["torchrun", "--standalone", "a.py"]),
            ["the argument --standalone of container 'worker' takes precedence"],
            ["tart the script with torchrun"],
            id="torchrun alone",
        ),
        pytest.param(
            spec_of(command=["torchrun", "a.py"], env=[{"name": "PET_RDZV_BACKEND", "value": "c10d"}]),
            ["the variable PET_RDZV_BACKEND of container 'worker' takes precedence"],
            ["tart the script with torchrun"],
            id="a variable",
        ),
        pytest.param(
            spec_of(command=["sh", "-c", "pip install x && torchrun a.py"]),
            ["the pod's log", "hub"],
            ["tart the script with torchrun"],
            id="torchrun: it is started, or waits for something before",
        ),
    ],
)
def test_advice_for_a_command_without_an_agent(spec: api.Spec, told: list[str], untold: list[str]) -> None:
    advice = contradictions.advise(spec)
    assert [words for words in told if words not in advice] == []
    assert [words for words in untold if words in advice] == []


def unset(*command: str, **more: Any) -> str:
    """What is said of variables in this command that nobody sets; "" if nothing is."""
    found = contradictions.find_contradictions(spec_of(command=list(command), **more))
    return next((one.message for one in found if one.reason == "VariableNotSet"), "")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        pytest.param(
            ["torchrun", "--nnodes=$(WORLD_SIZE)", "--node_rank=$(RANK)", "train.py"], "WORLD_SIZE, RANK", id="Kubeflow"
        ),
        pytest.param(
            ["bash", "-c", 'torchrun --master-addr="$MASTER_ADDR" --node-rank ${VC_TASK_INDEX} train.py'],
            "MASTER_ADDR, VC_TASK_INDEX",
            id="a shell's, as with Volcano",
        ),
        pytest.param(["torchrun", "--node-rank=$(JOB_COMPLETION_INDEX)", "t.py"], "JOB_COMPLETION_INDEX", id="a Job"),
    ],
)
def test_variables_that_other_operators_set_are_named(command: list[str], names: str) -> None:
    said = unset(*command)
    assert f"container 'worker' reads {names} in its command, which nobody sets" in said
    assert "leave --nnodes, --node-rank, --master-addr and --master-port out" in said


@pytest.mark.parametrize(
    ("command", "more"),
    [
        pytest.param(["torchrun", "train.py"], {}, id="none"),
        pytest.param(["torchrun", "--node-rank=$(RANK)", "t.py"], {"env": [{"name": "RANK", "value": "0"}]}, id="set"),
        pytest.param(["torchrun", "--node-rank=$(RANK)", "t.py"], {"envFrom": [{}]}, id="perhaps set"),
        pytest.param(["sh", "-c", "echo ${RANK:-0}; torchrun t.py"], {}, id="a default"),
        pytest.param(["sh", "-c", "export RANK=0; torchrun --node-rank $RANK t.py"], {}, id="set by the shell"),
        pytest.param(["sh", "-c", "echo $RANKS $(hostname); torchrun t.py"], {}, id="others"),
    ],
)
def test_variables_that_are_set_or_may_be_are_not_named(command: list[str], more: dict[str, Any]) -> None:
    assert unset(*command, **more) == ""
