"""Whether other pods hold copies of the job's last checkpoint: the condition `CheckpointCopied`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.model.observe import Agent

COPIED: Final = "Copied"
TOO_FEW: Final = "TooFewCopies"
LOST: Final = "NoCopyLeft"
UNFIT: Final = "UnfitName"
UNFINISHED: Final = "NeverFinished"

Finding = tuple[bool, str, str]  # status, reason and message of the condition


def find_copies(
    before: api.Condition | None,
    told: wire.Checkpoint | None,
    wanted: api.Checkpoints | None,
    agents: Iterable[Agent] = (),
) -> Finding | None:
    """The condition by what rank 0 tells, and what the agents of all pods do; None if it stays as it is."""
    if wanted is None:
        return None
    said = [(agent.pod, one) for agent in agents if (one := agent.state.checkpoint) is not None]
    if unfit := min((f"{pod} cannot have {one.unfit}" for pod, one in said if one.unfit), default=""):
        return (
            False,
            UNFIT,
            f"{unfit}: the newest checkpoint that all pods can have is used, and without one no world starts; nothing "
            "is deleted. Let the script use shorter names, or let checkpoints.path be on a file system that takes them",
        )
    if told is None or told.restoring:
        return None
    if unfinished := min((f"{pod} has {one.unfinished}" for pod, one in said if one.unfinished), default=""):
        return (
            False,
            UNFINISHED,
            f"{unfinished}: what is never finished is not copied, and is removed before the next world starts. Let the "
            "script save less often than once a second, and write logs to another directory than checkpoints.path, or "
            "open them in the mode `a`",
        )
    if told.number == 0:
        return None if before is None or before.reason in (UNFIT, UNFINISHED) else (False, LOST, describe_loss())
    if told.copies >= wanted.replicas:
        return True, COPIED, f"{wanted.replicas} other pods hold a copy of the last finished checkpoint"
    message = f"{told.copies} of {wanted.replicas} other pods hold a copy of the last finished checkpoint"
    return False, TOO_FEW, f"{message}: there are too few pods, or no room for it (checkpoints.sizeLimit)"


def describe_loss() -> str:
    return (
        "no pod is left that holds a complete checkpoint, so training begins anew; checkpoints.archive or a volume "
        "survives the loss of all pods and a suspension (docs/checkpoints.md)"
    )
