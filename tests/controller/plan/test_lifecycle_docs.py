"""Every row of docs/lifecycle.md has a test scenario, and every reason of a condition is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORIES = {
    name
    for folder in ("controller/simulation", "integration")
    for file in (ROOT / "tests" / folder).glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "lifecycle.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| Event"))
]

# Where the reasons of conditions, failures and events are.
SPEAKERS = (
    "plan/accounting", "apply/apply", "plan/ending", "failures/classify", "api/names",
    "run/operator", "plan/plan", "plan/policy", "model/reading", "plan/reporting",
    "plan/flapping", "failures/backoff_rules", "failures/silence", "plan/next_status", "apply/refusals",
    "history/moments", "templates/taking", "failures/waiting", "model/contradictions",
)  # fmt: skip
NOT_REASONS = {
    *("ContainerCreating", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"),  # Kubernetes'
    *(
        "ContainerStatusUnknown",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "PodGroup",
        "PodInitializing",
        "PersistentVolumeClaim",
    ),
    *("DistBackendError", "DistNetworkError", "DistStoreError"),  # torch's exceptions
    *("ElasticJob", "ElasticJobTemplate", "FailJob", "RestartIgnoreBudget", "NewPod", "UsageError"),  # ours
}
REASONS = {
    node.value
    for name in SPEAKERS
    for node in ast.walk(ast.parse((ROOT / f"operator/elasticjob_operator/{name}.py").read_text()))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
    if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", node.value)
} - NOT_REASONS
DOCUMENTED = {
    word
    for file in ("lifecycle", "operations")
    for code in re.findall(r"`([^`\n]+)`", (ROOT / f"docs/{file}.md").read_text())
    for word in re.findall(r"\w+", code)
}


@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_the_row_is_a_story(row: list[str]) -> None:
    assert len(row) == 4
    assert row[3].strip("`") in STORIES


def test_there_are_rows() -> None:
    assert len(ROWS) > 40


def test_every_reason_is_documented() -> None:
    assert len(REASONS) > 30
    assert not REASONS - DOCUMENTED
