"""Whether the job's checkpoints are in a store that outlives its pods: the condition `CheckpointArchived`. Pure."""

from __future__ import annotations

from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire

ARCHIVED: Final = "Archived"
TOO_OLD: Final = "AgentTooOld"
OTHER: Final = "NotArchived"
# What agents say, as `elasticjob.archive` gives it.
PROBLEMS: Final = frozenset(
    {"StoreUnreachable", "StoreRefused", "ExtraMissing", "NothingToRestore", "NotInTime", "NewerWorld"}
)

Finding = tuple[bool, str, str]  # status, reason and message of the condition


def find_archived(told: wire.Checkpoint | None, url: str) -> Finding | None:
    """The condition by what rank 0 tells; None if it stays as it is. `url`: of the job's folder."""
    if told is None:
        return None
    archive = told.archive
    if archive is None:
        return (
            False,
            TOO_OLD,
            "the pods were made before checkpoints.archive was set, or their elasticjob runtime does not know it: "
            "suspend and resume the job, and update the image if that does not help",
        )
    if archive.reason:
        reason = archive.reason if archive.reason in PROBLEMS else OTHER
        return False, reason, archive.message or "the agent of rank 0 names no reason"
    return (True, ARCHIVED, f"the last checkpoint is in {url}") if archive.saves else None


def describe(told: wire.Checkpoint | None, before: api.ArchiveStatus | None, url: str) -> api.ArchiveStatus | None:
    """What is in the archive, by what rank 0 tells."""
    if told is None or told.archive is None or not told.archive.saves:
        return before
    saves = [
        api.ArchivedStatus(step=one.step, time=one.time or None, bytes=one.bytes, files=one.files)
        for one in told.archive.saves[:16]
    ]
    return api.ArchiveStatus(url=url, saves=saves)
