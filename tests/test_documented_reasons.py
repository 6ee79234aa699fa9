"""Each reason that the operator can give in a condition, an event or a failure is explained on a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPERATOR = ROOT / "operator/elasticjob_operator"
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("operations", "kueue")]
SPEAKERS: Final = (
    *("plan", "failures", "sizing", "apply", "run", "templates"),
    *("api/names.py", "history/moments.py", "model/reading.py", "model/contradictions.py", "model/queueing.py"),
)
REASON: Final = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]*)+")
# Words of the same form that are no reasons of the operator.
KINDS: Final = {
    "ConfigMap", "NetworkPolicy", "PodGroup", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NewPod", "UsageError",
    "PersistentVolumeClaim", "NaN", "ElasticJobTemplate", "KeyRef",
}  # fmt: skip
OF_KUBERNETES: Final = {
    "ContainerCreating", "ContainerStatusUnknown", "ErrImageNeverPull", "ErrImagePull", "FallbackToLogsOnError",
    "IfNotPresent", "ImagePullBackOff", "InvalidImageName", "NodeAffinity", "NodeLost", "NodeShutdown", "NotIn",
    "CreateContainerError", "FailedScheduling", "PodInitializing", "RuntimeDefault",
}  # fmt: skip
OF_TORCH: Final = {"DistBackendError", "DistNetworkError", "DistStoreError"}
OF_SPECS: Final = {"FailJob", "RestartIgnoreBudget"}


def find_reasons() -> Iterator[str]:
    for place in SPEAKERS:
        path = OPERATOR / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and REASON.fullmatch(node.value):
                    yield node.value


@pytest.mark.parametrize("reason", sorted({*find_reasons()} - KINDS - OF_KUBERNETES - OF_TORCH - OF_SPECS))
def test_a_reason_is_explained(reason: str) -> None:
    assert any(f"`{reason}`" in page.read_text() for page in PAGES), f"no page says what {reason} means"
