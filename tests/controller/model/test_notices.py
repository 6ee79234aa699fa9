"""What is written on nodes that will go, and on broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticjob_operator.model import notices
from elasticjob_operator.model.observe import Node, observe_node

ROOT = Path(__file__).parents[3]


def observe(taints: list[dict[str, str]], conditions: list[dict[str, str]]) -> Node:
    ready = {"type": "Ready", "status": "True"}
    return observe_node(
        {"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": [ready, *conditions]}}
    )


@pytest.mark.parametrize("key", notices.REMOVALS)
@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule", "NoExecute"])
def test_a_taint_that_announces_a_removal(key: str, effect: str) -> None:
    assert observe([{"key": "gpu", "effect": "NoSchedule"}, {"key": key, "effect": effect}], []).leaving == key


@pytest.mark.parametrize(
    ("key", "effect", "leaves"),
    [
        pytest.param("mine", "NoExecute", True, id="pods are evicted"),
        pytest.param("mine", "NoSchedule", False, id="pods stay"),
        pytest.param("nvidia.com/gpu", "NoSchedule", False, id="a node with devices"),
        pytest.param("kubernetes.azure.com/scalesetpriority", "NoSchedule", False, id="a spot node that stays"),
        pytest.param("node.kubernetes.io/unschedulable", "NoSchedule", False, id="a cordon is told by its field"),
        pytest.param("node.kubernetes.io/not-ready", "NoExecute", False, id="dead"),
        pytest.param("node.kubernetes.io/unreachable", "NoExecute", False, id="cut off"),
        pytest.param("node.kubernetes.io/disk-pressure", "NoSchedule", False, id="pressure passes"),
    ],
)
def test_other_taints(key: str, effect: str, leaves: bool) -> None:
    assert observe([{"key": key, "effect": effect}], []).leaving == (key if leaves else "")


@pytest.mark.parametrize(("type", "status"), notices.PROBLEMS)
def test_a_condition_that_tells_of_a_broken_node(type: str, status: str) -> None:
    found = observe([], [{"type": "MemoryPressure", "status": "False"}, {"type": type, "status": status}])
    assert (found.problem, found.ready, found.leaving) == (f"{type}={status}", True, "")
    healthy = {"True": "False", "False": "True"}[status]
    assert observe([], [{"type": type, "status": healthy}]).problem == ""
    assert observe([], [{"type": type, "status": "Unknown"}]).problem == ""


@pytest.mark.parametrize("type", ["MemoryPressure", "DiskPressure", "FrequentKubeletRestart", "VMEventScheduled"])
def test_other_conditions(type: str) -> None:
    assert observe([], [{"type": type, "status": "True"}]).problem == ""


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/health.md").read_text()
    rows = [f"| taint `{key}` | {why} |" for key, why in notices.REMOVALS.items()]
    rows += [f"| condition `{type}={status}` | {why} |" for (type, status), why in notices.PROBLEMS.items()]
    assert [row for row in rows if row not in page] == []
