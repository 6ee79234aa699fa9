"""Whether other pods hold copies of the job's last checkpoint: the condition `CheckpointCopied`. Pure."""

from __future__ import annotations

from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire

COPIED: Final = "Copied"
TOO_FEW: Final = "TooFewCopies"
LOST: Final = "NoCopyLeft"

Finding = tuple[bool, str, str]  # status, reason and message of the condition


def find_copies(
    before: api.Condition | None, told: wire.Checkpoint | None, wanted: api.Checkpoints | None
) -> Finding | None:
    """The condition by what rank 0 tells; None if it stays as it is."""
    if wanted is None or told is None or told.restoring:
        return None
    if told.number == 0:
        return None if before is None else (False, LOST, describe_loss())
    if told.copies >= wanted.replicas:
        return True, COPIED, f"{wanted.replicas} other pods hold a copy of the last finished checkpoint"
    message = f"{told.copies} of {wanted.replicas} other pods hold a copy of the last finished checkpoint"
    return False, TOO_FEW, f"{message}: there are too few pods, or no room for it (checkpoints.sizeLimit)"


def describe_loss() -> str:
    return (
        "no pod is left that holds a complete checkpoint, so training begins anew; checkpoints.archive or a volume "
        "survives the loss of all pods and a suspension (docs/checkpoints.md)"
    )
