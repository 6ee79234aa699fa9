"""Pods that run without an agent: what is told of them."""

from __future__ import annotations

import pytest

from controller.builders import NOW, make_pod
from elasticjob_operator.failures import silence


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        pytest.param("", "no elastic agent has connected. If", id="alone"),
        pytest.param(
            "container 'mesh' has not started: image mesh:1 cannot be pulled",
            "no elastic agent has connected; container 'mesh' has not started: image mesh:1 cannot be pulled. If",
            id="the proxy through which it would connect is not there",
        ),
    ],
)
def test_a_command_without_an_agent_is_told_with_what_is_wrong_beside_it(dead: str, words: str) -> None:
    pod = make_pod(began=NOW - 100, dead_sidecar=dead)
    found = silence.find_agentless([pod], (), lambda: "Do this", hub_started=NOW - 100, now=NOW)
    assert words in found.message
    assert found.message.endswith("Do this")
