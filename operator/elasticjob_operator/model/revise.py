"""Copies a status with some fields changed; mypy checks the names and types of these fields. Pure.

`model_copy(update=...)` accepts any key and any value. Here each status model has a `TypedDict` of the fields that the
operator changes; a test keeps the two consistent.
"""

from __future__ import annotations

from typing import Any, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel

from elasticjob_operator import api

_Model = TypeVar("_Model", bound=BaseModel)


class ConditionFields(TypedDict, total=False):
    observed_generation: int


class MemberFields(TypedDict, total=False):
    leaving: str | None


class RendezvousFields(TypedDict, total=False):
    world_size: int
    processes: int
    members: list[api.Member]
    store: api.StoreAddress | None
    succeeded: list[str]
    lost: list[api.LostMember]


class BackoffFields(TypedDict, total=False):
    reason: str
    repeats: int
    held: int
    lived_seconds: float
    since: str | None
    until: str | None
    cause: str | None
    step: int | None
    error: str | None
    alike: int
    nodes: list[str]


class RestartFields(TypedDict, total=False):
    user: int
    infrastructure: int
    total: int
    window_start: str | None
    last_time: str | None
    generation: int
    step: int | None
    error: str | None
    alike: int
    stuck: int
    stuck_total: int | None
    counted: list[str]
    backoff: api.BackoffStatus | None
    ordered: api.OrderedRestart | None
    unasked_until: str | None


class FailureFields(TypedDict, total=False):
    message: str | None
    traceback: str | None
    log_tail: str | None


class GoodputFields(TypedDict, total=False):
    training_seconds: float
    lost_seconds: float
    measured: api.Measured
    step_generation: int
    last_recovery_seconds: float | None
    rescales: int
    training: bool
    since: str | None
    faults: int
    mean_recovery_seconds: float | None
    mean_seconds_between_faults: float | None
    step: int | None
    step_seconds: float | None
    checkpoint_seconds: float | None


class WorldFields(TypedDict, total=False):
    lost_seconds: float | None
    first_step: int | None
    state_bytes: int | None
    state_seconds: float | None


class StragglerFields(TypedDict, total=False):
    rank: int
    own_seconds: float
    others_seconds: float
    replace_time: str | None


class IncidentFields(TypedDict, total=False):
    count: int
    acted: int
    last_action: str | None
    since: str | None
    last_time: str | None
    generation: int
    step: int | None
    rank: int | None
    pod: str | None
    node: str | None
    device: str | None
    message: str
    best: list[api.BestValue]
    metric: str | None


class CapacityFields(TypedDict, total=False):
    withdrawn: int
    attempts: int
    retry_time: str | None
    said: str | None
    failed_sizes: list[int]
    cause: str | None


class StatusFields(TypedDict, total=False):
    phase: api.Phase | None
    conditions: list[api.Condition]
    replicas: int
    ready_replicas: int
    selector: str | None
    nproc_per_node: int | None
    in_force: api.InForceStatus | None
    template: api.TemplateStatus | None
    rendezvous: api.RendezvousStatus
    restarts: api.RestartStatus
    code: api.CodeStatus | None
    progress: api.ProgressStatus | None
    archive: api.ArchiveStatus | None
    origin: api.OriginStatus | None
    goodput: api.GoodputStatus
    lost_seconds: api.LostSeconds | None
    timeline: list[api.WorldStatus]
    last_failure: api.FailureStatus | None
    failures: list[api.FailureStatus]
    diagnosis: api.DiagnosisStatus | None
    stragglers: list[api.StragglerStatus]
    incidents: list[api.IncidentStatus]
    node_faults: list[api.NodeFault]
    preflight: list[api.PreflightStatus]
    capacity: api.CapacityStatus | None
    scaling: api.ScalingStatus | None
    written_replicas: int | None
    template_hash: str | None
    operator: api.OperatorStatus | None
    observed_generation: int
    start_time: str | None
    completion_time: str | None


FIELDS: dict[type[BaseModel], Any] = {
    api.Condition: ConditionFields,
    api.Member: MemberFields,
    api.RendezvousStatus: RendezvousFields,
    api.BackoffStatus: BackoffFields,
    api.RestartStatus: RestartFields,
    api.FailureStatus: FailureFields,
    api.GoodputStatus: GoodputFields,
    api.WorldStatus: WorldFields,
    api.StragglerStatus: StragglerFields,
    api.IncidentStatus: IncidentFields,
    api.CapacityStatus: CapacityFields,
    api.Status: StatusFields,
}


@overload
def revise(before: api.Status, **changes: Unpack[StatusFields]) -> api.Status: ...
@overload
def revise(before: api.RendezvousStatus, **changes: Unpack[RendezvousFields]) -> api.RendezvousStatus: ...
@overload
def revise(before: api.Condition, **changes: Unpack[ConditionFields]) -> api.Condition: ...
@overload
def revise(before: api.Member, **changes: Unpack[MemberFields]) -> api.Member: ...
@overload
def revise(before: api.RestartStatus, **changes: Unpack[RestartFields]) -> api.RestartStatus: ...
@overload
def revise(before: api.BackoffStatus, **changes: Unpack[BackoffFields]) -> api.BackoffStatus: ...
@overload
def revise(before: api.FailureStatus, **changes: Unpack[FailureFields]) -> api.FailureStatus: ...
@overload
def revise(before: api.GoodputStatus, **changes: Unpack[GoodputFields]) -> api.GoodputStatus: ...
@overload
def revise(before: api.WorldStatus, **changes: Unpack[WorldFields]) -> api.WorldStatus: ...
@overload
def revise(before: api.StragglerStatus, **changes: Unpack[StragglerFields]) -> api.StragglerStatus: ...
@overload
def revise(before: api.IncidentStatus, **changes: Unpack[IncidentFields]) -> api.IncidentStatus: ...
@overload
def revise(before: api.CapacityStatus, **changes: Unpack[CapacityFields]) -> api.CapacityStatus: ...
def revise(before: _Model, **changes: Any) -> _Model:
    """A copy with these fields changed. Fields that a newer operator wrote are kept."""
    return before.model_copy(update=changes)
