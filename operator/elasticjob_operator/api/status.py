"""The status of an ElasticJob, which the operator writes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from elasticjob_operator.api import names
from elasticjob_operator.api.base import StatusModel
from elasticjob_operator.api.past import (
    DiagnosisStatus,
    FailureStatus,
    GoodputStatus,
    IncidentStatus,
    LostSeconds,
    NodeFault,
    PreflightStatus,
    StragglerStatus,
    WorldStatus,
)
from elasticjob_operator.api.policies import RendezvousBackend


class Phase(StrEnum):
    """A summary for users and printer columns. Programs should use the conditions."""

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
    observed_generation: int = Field(default=0, description="The generation of the spec that this is about.")


class Member(StatusModel):
    """One pod of the world; `rank` is the group rank."""

    pod: str
    uid: str = ""
    node: str = ""
    rank: int
    address: str | None = None
    nproc: int = 1
    leaving: str | None = Field(default=None, description="Why the next generation will not contain it.")


class LostMember(StatusModel):
    """A member of an earlier world that was lost, and whose pod has not ended yet."""

    uid: str
    rank: int
    generation: int


class StoreAddress(StatusModel):
    address: str
    port: int


class RendezvousStatus(StatusModel):
    generation: int = Field(default=0, description="Number of the world; grows by one with every regroup.")
    world_size: int = Field(default=0, description="Pods in the world; 0 while none is formed.")
    processes: int = Field(default=0, description="Worker processes in the world.")
    members: list[Member] = Field(default_factory=list, description="Ordered by rank.")
    store: StoreAddress | None = Field(default=None, description="The address of this generation's store.")
    formed_time: str | None = None
    reason: str | None = Field(default=None, description="Why this generation was formed.")
    revision: int | None = Field(default=None, description="The revision of its code; absent for the first one.")
    succeeded: list[str] = Field(
        default_factory=list, description="Pods (UIDs) that succeeded in an earlier generation of the last world."
    )
    lost: list[LostMember] = Field(
        default_factory=list, description="Members of earlier worlds that were lost, until their pods have ended."
    )


class BackoffStatus(StatusModel):
    """Consecutive failures without progress, and when the next attempt is due."""

    reason: str = Field(default="", description="CrashLoop, BackOff (pods were lost) or PreflightFailed.")
    repeats: int = Field(default=0, description="Consecutive failures.")
    held: int = Field(default=0, description="Pods whose creation waits; 0 means that the whole job waits.")
    lived_seconds: float = Field(default=0.0, description="The longest that one of the pods that failed had run.")
    since: str | None = Field(default=None, description="When the last of these failures was seen.")
    until: str | None = Field(default=None, description="When the next attempt is due.")
    cause: str | None = Field(
        default=None, description="Digest of the spec without its sizes: a change of anything else is tried at once."
    )
    step: int | None = Field(default=None, description="Highest step seen at that time.")
    error: str | None = Field(default=None, description="The program's error, if it failed before its first step.")
    alike: int = Field(default=0, description="How many times in a row this error occurred.")
    nodes: list[str] = Field(
        default_factory=list, description="Nodes on which it occurred. Two different nodes rule out a broken node."
    )


class OrderedRestart(StatusModel):
    """The end of a world that a rule of health.rules has ordered."""

    rule: str
    generation: int = Field(default=0, description="The world that it ends.")
    rank: int | None = None
    pod: str | None = None
    uid: str | None = Field(default=None, description="The pod (UID) whose place another one takes.")
    node: str | None = Field(default=None, description="Its node, which new pods should avoid.")
    saves: bool = Field(default=True, description="Whether the scripts save first.")
    before: int | None = Field(
        default=None, description="Only checkpoints of earlier steps are restored, until training has passed `until`."
    )
    until: int | None = Field(default=None, description="The highest step at that time.")
    tries: int | None = Field(
        default=None, description="How many worlds in a row were sick from their first report on."
    )


class RestartStatus(StatusModel):
    user: int = Field(default=0, description="Worker-caused restarts in the current window.")
    infrastructure: int = Field(default=0, description="Restarts because of lost pods or nodes; free.")
    total: int = Field(default=0, description="All worker-caused restarts of the job.")
    window_start: str | None = None
    last_time: str | None = Field(default=None, description="When the last worker-caused restart was charged.")
    generation: int = Field(default=0, description="The last generation that was charged.")
    step: int | None = Field(default=None, description="Highest step seen when it was charged.")
    error: str | None = Field(default=None, description="The error of the last charged failure, and its place.")
    alike: int = Field(
        default=0,
        description="How many charged failures in a row had this error, without a step beyond the one before. From the"
        " second one on, `elasticjob.Checkpointer` goes back to older checkpoints. Errors with which the runtime"
        " refuses the script are counted whatever steps were between, and no older checkpoint is taken for them.",
    )
    stuck: int = Field(
        default=0,
        description="How many charged restarts in a row made no step beyond the one before, whatever time was between;"
        " of a script that reports steps.",
    )
    stuck_total: int | None = Field(
        default=None,
        description="What `total` was when `stuck` was counted: an operator of an earlier version counts only that.",
    )
    counted: list[str] = Field(default_factory=list, description="Failed pods (UIDs) that have been accounted for.")
    backoff: BackoffStatus | None = None
    ordered: OrderedRestart | None = None
    unasked_until: str | None = Field(
        default=None, description="When the worlds that members left without a failure stop counting."
    )


class CodeRevision(StatusModel):
    """One revision of the code; 0, without a digest, is what the job was submitted with."""

    revision: int = 0
    digest: str | None = None
    message: str | None = Field(default=None, description="Why it is no longer in force.")


class CodeStatus(StatusModel):
    """The code that worlds are formed with from now on, once spec.code has asked for another one."""

    revision: int = 0
    digest: str | None = None
    time: str | None = Field(default=None, description="When it came into force.")
    proven: bool = Field(default=True, description="Whether it has made a step, or has run for a while.")
    previous: CodeRevision | None = Field(
        default=None, description="What takes its place if it fails before that, or is taken back."
    )
    failed: CodeRevision | None = Field(default=None, description="A later one that failed before its first step.")

    @property
    def newest(self) -> int:
        """The greatest revision that has been in force."""
        return max(self.revision, self.failed.revision if self.failed else 0)


class Metric(StatusModel):
    name: str
    value: float


class Tier(StrEnum):
    """Where a checkpoint is."""

    FILE = "File"  # in the directory of the script
    MEMORY = "Memory"  # a snapshot in the memory of the pods
    COPIES = "Copies"  # in other pods, with spec.checkpoints
    ARCHIVE = "Archive"  # in a store that outlives all pods, with spec.checkpoints.archive


class SavedStatus(StatusModel):
    tier: str
    time: str = Field(description="When its state was taken; of copies and of the archive, when they were complete.")


class ArchivedStatus(StatusModel):
    step: int | None = Field(default=None, description="That the script had reported when its last file was written.")
    time: str | None = Field(default=None, description="When it was archived, by the clock of the pod that did.")
    bytes: int = 0
    files: int = 0


class ArchiveStatus(StatusModel):
    """What is in the store that outlives all pods."""

    url: str = Field(default="", description="The job's folder, for spec.checkpoints.from of another job.")
    saves: list[ArchivedStatus] = Field(default_factory=list, description="Newest first, at most 16.")


class OriginStatus(StatusModel):
    """Where a job begins that names another one in spec.checkpoints.from.job."""

    job: str = ""
    url: str = Field(default="", description="The folder of that job in its archive, when this one started.")


class ReportStatus(StatusModel):
    """One report of the script."""

    time: str
    step: int
    metrics: dict[str, float] = Field(default_factory=dict, description="At most three, the loss first.")


class ReportHistory(StatusModel):
    """At most 60 reports, spread over the life of the job: the more there were, the fewer of them are kept."""

    every_seconds: int = Field(default=10, description="The least time between two of them; doubles when it is full.")
    reports: list[ReportStatus] = Field(default_factory=list, description="Oldest first.")


class ProgressStatus(StatusModel):
    step: int | None = None
    total_steps: int | None = None
    percentage: int | None = None
    step_seconds: float | None = Field(
        default=None, description="Of a step in the present world, as the script's reports show it; smoothed."
    )
    estimated_remaining_seconds: int | None = None
    samples_per_second: float | None = Field(
        default=None, description="Of all ranks, if the script reports samples or lets its batch grow; smoothed."
    )
    tokens_per_second: float | None = Field(default=None, description="Of all ranks, if the script reports tokens.")
    mfu: float | None = Field(
        default=None,
        description="Model FLOPs utilization: the share of the devices' peak, if the script reports flops and"
        " peak_flops.",
    )
    checkpoints: list[SavedStatus] = Field(
        default_factory=list, description="The last finished checkpoint of each tier, if it is known."
    )
    metrics: list[Metric] = Field(default_factory=list)
    not_finite: list[str] = Field(
        default_factory=list, description="Metrics that were NaN or infinite in the last report."
    )
    last_update_time: str | None = None
    history: ReportHistory | None = Field(
        default=None, description="A few of the reports of all worlds, for pages that are opened later."
    )


class SizeSpeed(StatusModel):
    """What was measured at one size."""

    size: int
    step_seconds: float
    batch_size: int | None = Field(
        default=None, description="Samples of a step, of a job whose batch grows; its steps are those of the optimizer."
    )
    reports: float = Field(default=1, description="How many reports that is the mean of, old ones counting less.")
    time: str | None = Field(default=None, description="Of the last report.")


class CostStatus(StatusModel):
    """What the job costs, where the devices of its pool have prices."""

    per_hour: float = Field(description="Its pods on their nodes, now.")
    spent: float = Field(default=0, description="Since the job began to share the pool.")
    expected: float | None = Field(
        default=None, description="When it is done at its present size; known for jobs that report their total steps."
    )


class ScalingStatus(StatusModel):
    """How big the job is to be, and why."""

    size: int = Field(default=0, description="Pods of the largest world that may be formed now.")
    wanted: int = Field(default=0, description="Pods that are asked for: by spec.replicas, or by the pool.")
    limited_by: str | None = Field(
        default=None, description="What keeps it from more: pool, elasticPolicy, legalSizes, room or finishing."
    )
    reason: str | None = None
    pool: str | None = Field(default=None, description="The pool that the job shares.")
    pinned: bool | None = Field(default=None, description="Whether spec.replicas was written by others than the pool.")
    previous_size: int | None = Field(default=None, description="Pods before the pool changed them the last time.")
    expected_gain_percent: int | None = Field(default=None, description="In speed, by the model, of that change.")
    speeds: list[SizeSpeed] = Field(default_factory=list, description="Ordered by size.")
    noise_scale: float | None = Field(
        default=None,
        description="Of the gradients: the batch, in samples, at which they are noise by half. Known of a job whose"
        " batch grows by AdaScale.",
    )
    cost: CostStatus | None = Field(default=None, description=CostStatus.__doc__)


class CapacityStatus(StatusModel):
    """Extra pods that could not be scheduled: how many were withdrawn, and when they are retried. And sizes at which
    the script cannot start.
    """

    withdrawn: int = 0
    attempts: int = 0
    retry_time: str | None = None
    said: str | None = Field(default=None, description="What the scheduler said of the pods that were withdrawn.")
    failed_sizes: list[int] = Field(
        default_factory=list,
        description=(
            "Numbers of pods with which the script failed at its start, after it had trained with others, and those "
            "between a size that worked and a larger one that failed: no world has so many until what may mend it "
            "changes."
        ),
    )
    cause: str | None = Field(default=None, description="A digest of what may have let the script fail then.")


class RendezvousInForce(StatusModel):
    backend: RendezvousBackend = RendezvousBackend.OPERATOR
    endpoint: str | None = None
    conf: dict[str, str] | None = None


class InForceStatus(StatusModel):
    """Fields that cannot change while the job runs, as of its start or its last resumption."""

    nproc_per_node: Annotated[int, Field(ge=1)] = Field(default=1, description="Worker processes per pod.")
    rendezvous: RendezvousInForce = Field(default_factory=RendezvousInForce, description="As in the spec.")


def _json_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("must be the JSON of an object")
    return text


class TemplateStatus(StatusModel):
    """The template that the job took. Later changes of the template, or its deletion, do not reach the job."""

    kind: str = names.TEMPLATE_KIND
    namespace: str
    name: str
    uid: str = ""
    generation: int = 0
    fields: list[str] = Field(
        default_factory=list,
        description="The fields of the spec that came from it, at most 64; the others are the job's.",
    )
    spec: Annotated[str, AfterValidator(_json_object)] = Field(description="Its spec when the job took it, as JSON.")


class OperatorStatus(StatusModel):
    """Which operator decides over the job. The others leave it alone."""

    release: str = Field(default="", description="Namespace and name of the Lease that its replicas share.")
    asked: str | None = Field(
        default=None,
        description="Another one that watches the job, and asks whether this one is there: its answer is to remove this"
        " field. Without one, the other takes over.",
    )


class Status(StatusModel):
    """The observed state. Only the operator writes it, in one patch per pass."""

    phase: Phase | None = None
    conditions: list[Condition] = Field(default_factory=list)
    replicas: int = Field(default=0, description="Pods that exist and are not terminating.")
    ready_replicas: int = Field(default=0, description="Pods in the running world.")
    selector: str | None = None
    nproc_per_node: int | None = Field(default=None, description="Worker processes per pod, as a number.")
    in_force: InForceStatus | None = None
    template: TemplateStatus | None = None
    rendezvous: RendezvousStatus = Field(default_factory=RendezvousStatus)
    restarts: RestartStatus = Field(default_factory=RestartStatus)
    code: CodeStatus | None = Field(default=None, description=CodeStatus.__doc__)
    progress: ProgressStatus | None = None
    archive: ArchiveStatus | None = None
    origin: OriginStatus | None = None
    goodput: GoodputStatus = Field(default_factory=GoodputStatus)
    lost_seconds: LostSeconds | None = Field(default=None, description="goodput.lostSeconds by category.")
    timeline: list[WorldStatus] = Field(default_factory=list, description="The last 50 worlds, oldest first.")
    last_failure: FailureStatus | None = None
    failures: list[FailureStatus] = Field(
        default_factory=list,
        description="The last failure of each rank, at most 32: the latest first, the cause before its consequences."
        " Beyond 16 KiB, their texts are left out.",
    )
    diagnosis: DiagnosisStatus | None = None
    stragglers: list[StragglerStatus] = Field(
        default_factory=list, description="Slow members, the slowest first, at most 8; see health.stragglers."
    )
    incidents: list[IncidentStatus] = Field(
        default_factory=list, description="What health.rules have found, at most one entry for each rule."
    )
    node_faults: list[NodeFault] = Field(default_factory=list)
    preflight: list[PreflightStatus] = Field(
        default_factory=list, description="What health.preflight: Network measured, by node, at most 32; failed first."
    )
    capacity: CapacityStatus | None = None
    scaling: ScalingStatus | None = None
    written_replicas: int | None = Field(
        default=None,
        description="The number in spec.replicas, where the operator has written it because nobody else did: a change "
        "of elasticPolicy may contradict it.",
    )
    template_hash: str | None = None
    operator: OperatorStatus | None = Field(default=None, description=OperatorStatus.__doc__)
    observed_generation: int = 0
    start_time: str | None = None
    completion_time: str | None = None

    def dump(self) -> dict[str, Any]:
        """The JSON object as stored. Empty strings are omitted, since some API servers treat them as null."""
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
        """Whether the job cannot have pods: it never ran, or it is suspended and its pods are gone."""
        return self.start_time is None or self.is_true("Suspended")

    @property
    def finished(self) -> bool:
        return self.is_true("Complete") or self.is_true("Failed")


def _without_empty_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_empty_texts(v) for k, v in value.items() if v != ""}
    return [_without_empty_texts(v) for v in value] if isinstance(value, list) else value
