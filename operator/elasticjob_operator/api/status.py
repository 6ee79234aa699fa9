"""The status: what the operator writes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from elasticjob_operator.api.base import Model
from elasticjob_operator.api.policies import RendezvousBackend


class StatusModel(Model):
    """What is not known in it was written by a newer operator: it is kept with the object that it belongs to."""

    model_config = ConfigDict(extra="allow")


class Phase(StrEnum):
    """One word for people and printer columns; the conditions are the contract."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESCALING = "Rescaling"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Condition(StatusModel):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class Member(StatusModel):
    """One pod of the world; `rank` is the group rank."""

    pod: str
    uid: str = ""
    node: str = ""
    rank: int
    address: str | None = None
    nproc: int = 1
    leaving: str | None = Field(default=None, description="Why the next generation will be formed without it.")


class StoreAddress(StatusModel):
    address: str
    port: int


class RendezvousStatus(StatusModel):
    generation: int = Field(default=0, description="Number of the world; grows by one with every regroup.")
    world_size: int = Field(default=0, description="Pods in the world; 0 while none is formed.")
    processes: int = Field(default=0, description="Worker processes in the world.")
    members: list[Member] = Field(default_factory=list, description="Ordered by rank.")
    store: StoreAddress | None = Field(default=None, description="Where this generation's store listens.")
    formed_time: str | None = None
    reason: str | None = Field(default=None, description="Why this generation was formed.")
    succeeded: list[str] = Field(
        default_factory=list, description="Pods (UIDs) that ended well in an earlier generation of the last world."
    )


class BackoffStatus(StatusModel):
    """What has failed in a row without progress, and how long it waits before it is tried again."""

    reason: str = Field(default="", description="CrashLoop, BackOff (pods were lost) or PreflightFailed.")
    repeats: int = Field(default=0, description="Failures in a row.")
    held: int = Field(default=0, description="Pods that wait; 0: the whole job does.")
    since: str | None = Field(default=None, description="When the last one in the row was seen.")
    until: str | None = Field(default=None, description="When it is tried again.")
    step: int | None = Field(default=None, description="Highest step seen then.")
    error: str | None = Field(default=None, description="The program's mistake, where it has not come to a step yet.")
    alike: int = Field(default=0, description="How often in a row that was the error.")
    nodes: list[str] = Field(default_factory=list, description="Where; two are enough to acquit the nodes.")


class RestartStatus(StatusModel):
    user: int = Field(default=0, description="Worker-caused restarts in the present window.")
    infrastructure: int = Field(default=0, description="Restarts because of lost pods or nodes; free.")
    total: int = Field(default=0, description="Worker-caused restarts ever.")
    window_start: str | None = None
    last_time: str | None = Field(default=None, description="When the last worker-caused one was charged.")
    generation: int = Field(default=0, description="The last generation that was charged.")
    step: int | None = Field(default=None, description="Highest step seen when it was charged.")
    counted: list[str] = Field(default_factory=list, description="Failed pods that are accounted for (UIDs).")
    backoff: BackoffStatus | None = None
    unasked_until: str | None = Field(
        default=None, description="When the worlds that members left without a failure will be forgotten."
    )


class FailureStatus(StatusModel):
    """The last failure, kept when the pod is gone."""

    time: str | None = None
    pod: str | None = None
    node: str | None = None
    generation: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    message: str | None = None
    traceback: str | None = Field(default=None, description="The traceback; where it is long, the middle is left out.")
    log_tail: str | None = Field(default=None, description="Last lines of the log, without the traceback.")


class Metric(StatusModel):
    name: str
    value: float


class ProgressStatus(StatusModel):
    step: int | None = None
    total_steps: int | None = None
    percentage: int | None = None
    estimated_remaining_seconds: int | None = None
    metrics: list[Metric] = Field(default_factory=list)
    last_update_time: str | None = None


class Measured(StrEnum):
    """From when on a world counts as one that trains."""

    FORMATION = "Formation"
    STEPS = "Steps"


class GoodputStatus(StatusModel):
    training_seconds: float = Field(default=0, description="Seconds in which worlds trained.")
    lost_seconds: float = Field(default=0, description="Seconds in which none did, since the first world.")
    measured: Measured = Field(
        default=Measured.FORMATION,
        description="From when on a world counts as one that trains. Steps: from its first reported step, to its last"
        " one where it hung. Formation: from when it was formed, since the script reports no steps; how long it loads,"
        " waits or hangs is not known then, and is counted as training.",
    )
    step_generation: int = Field(default=0, description="The last generation in which a step was reported.")
    last_recovery_seconds: float | None = Field(
        default=None, description="From the last fault or announced change to when the next world trained."
    )
    rescales: int = Field(default=0, description="Worlds formed after the first one.")
    training: bool = Field(default=False, description="Whether a world trains now, as far as it is measured.")
    since: str | None = Field(default=None, description="Since when.")


class NodeFault(StatusModel):
    node: str
    count: int
    last_time: str


class CapacityStatus(StatusModel):
    """Extras that could not be scheduled: how many were withdrawn, and when the next try is due."""

    withdrawn: int = 0
    attempts: int = 0
    retry_time: str | None = None


class RendezvousInForce(StatusModel):
    backend: RendezvousBackend = RendezvousBackend.OPERATOR
    endpoint: str | None = None
    conf: dict[str, str] | None = None


class InForceStatus(StatusModel):
    """What cannot change while the job runs, as it was when the job started or was resumed."""

    nproc_per_node: Annotated[int, Field(ge=1)] = Field(default=1, description="Worker processes per pod.")
    rendezvous: RendezvousInForce = Field(default_factory=RendezvousInForce, description="As in the spec.")


class Status(StatusModel):
    """What is. Written by the operator alone, in one patch a pass."""

    phase: Phase | None = None
    conditions: list[Condition] = Field(default_factory=list)
    replicas: int = Field(default=0, description="Pods that exist and are not on their way out.")
    ready_replicas: int = Field(default=0, description="Pods in the running world.")
    selector: str | None = None
    nproc_per_node: int | None = Field(default=None, description="Worker processes per pod, in numbers.")
    in_force: InForceStatus | None = None
    rendezvous: RendezvousStatus = Field(default_factory=RendezvousStatus)
    restarts: RestartStatus = Field(default_factory=RestartStatus)
    progress: ProgressStatus | None = None
    goodput: GoodputStatus = Field(default_factory=GoodputStatus)
    last_failure: FailureStatus | None = None
    node_faults: list[NodeFault] = Field(default_factory=list)
    capacity: CapacityStatus | None = None
    template_hash: str | None = None
    observed_generation: int = 0
    start_time: str | None = None
    completion_time: str | None = None

    def dump(self) -> dict[str, Any]:
        """As stored: an empty text is left out, since some API servers take it for null."""
        stored = _without_empty_texts(super().dump())
        assert isinstance(stored, dict), "a model dumps to an object"
        return stored

    def condition(self, type: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type), None)

    def is_true(self, type: str) -> bool:
        found = self.condition(type)
        return found is not None and found.status == "True"

    @property
    def is_fresh(self) -> bool:
        """Whether no pod of the job can be there: it never ran, or it is suspended and its pods are gone."""
        return self.start_time is None or self.is_true("Suspended")

    @property
    def finished(self) -> bool:
        return self.is_true("Complete") or self.is_true("Failed")


def _without_empty_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_empty_texts(v) for k, v in value.items() if v != ""}
    return [_without_empty_texts(v) for v in value] if isinstance(value, list) else value
