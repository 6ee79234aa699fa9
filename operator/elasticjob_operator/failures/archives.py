"""Whether the job's checkpoints are in a store that outlives its pods: the condition `CheckpointArchived`. Pure."""

from __future__ import annotations

from typing import Final

from elasticjob_operator import api
from elasticjob_operator.api import wire
from elasticjob_operator.model.observe import Job

ARCHIVED: Final = "Archived"
TOO_OLD: Final = "AgentTooOld"
OTHER: Final = "NotArchived"
# What agents say, as `elasticjob.archive` gives it.
PROBLEMS: Final = frozenset(
    {"StoreUnreachable", "StoreRefused", "ExtraMissing", "NothingToRestore", "NotInTime", "NewerWorld", "TooLarge"}
)

NOTHING: Final = "NothingToRestore"
MOST_SAVES: Final = 16  # that the status lists
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
        for one in told.archive.saves[:MOST_SAVES]
    ]
    return api.ArchiveStatus(url=url, saves=saves)


def find_origin(wanted: api.CheckpointOrigin, name: str, origin: Job | None) -> api.OriginStatus | str:
    """Where the job of this name begins, by what the job that it names has archived; or why it cannot begin yet."""
    field, other = "checkpoints.from.job", wanted.job or ""
    if other == name:
        return f"{field}: {other} names itself: name the folder of an earlier job in checkpoints.from.archive"
    if origin is None:
        return (
            f"{field}: there is no ElasticJob {other} in this namespace: create it or correct the name. Of a job that "
            "was deleted, or is in another namespace or cluster, name the folder in checkpoints.from.archive"
        )
    archive = origin.status.archive
    if archive is None or not archive.saves:
        checkpoints = None if origin.spec is None else origin.spec.checkpoints
        if checkpoints is None or checkpoints.archive is None:
            return f"{field}: {other} has no archive: set checkpoints.archive there, or name another job"
        return f"{field}: {other} has archived nothing yet: wait for its first save, or see its CheckpointArchived"
    steps = [save.step for save in archive.saves]
    if wanted.step is not None and wanted.step not in steps and len(steps) < MOST_SAVES:
        there = ", ".join(str(step) for step in steps if step is not None) or "none with a step"
        return f"checkpoints.from.step: {other} has no save of step {wanted.step} in its archive, but: {there}"
    return api.OriginStatus(job=other, url=archive.url)
