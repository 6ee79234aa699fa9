"""What kstatus concludes from any object of a kind that it does not know: the rules by which Flux waits.

They are those that kstatus publishes, in its order: https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CURRENT: Final = "Current"
IN_PROGRESS: Final = "InProgress"
FAILED: Final = "Failed"
TERMINATING: Final = "Terminating"


def compute(raw: Mapping[str, Any]) -> str:
    metadata, status = raw["metadata"], raw.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return TERMINATING
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return IN_PROGRESS
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Reconciling") == "True":
        return IN_PROGRESS
    if conditions.get("Stalled") == "True":
        return FAILED
    if conditions.get("Ready") in ("False", "Unknown"):
        return IN_PROGRESS
    return CURRENT
