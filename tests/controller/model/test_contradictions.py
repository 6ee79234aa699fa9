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
