"""The ElasticJob API, `elasticjob.dev/v1alpha1`: the only place a field is declared.

`crd.py` prints the CustomResourceDefinition from these models and `observe.py` validates what the API server
returns with them. A rule across fields stands here twice, side by side: as a CEL rule for the API server and as a
validator for servers without CEL; one test feeds both the same bad examples. Values are frozen; nothing here does I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from elasticjob_operator import podtemplate

Path = tuple[str | int, ...]  # of a field, below the spec
Fields = Mapping[str, "Fields | None"]  # the fields of an object; None where nothing of ours is below


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Model(BaseModel):
    """A frozen API object: snake_case in Python, camelCase in YAML, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_camel, populate_by_name=True)

    # CEL rules of this object: (rule, message). The validator beside it says the same.
    CEL: ClassVar[tuple[tuple[str, str], ...]] = ()
    # CEL rules of a change, which see `oldSelf` as well. Where CEL is not served, `reading` keeps what is in force.
    CEL_OF_CHANGES: ClassVar[tuple[tuple[str, str], ...]] = ()

    def dump(self) -> dict[str, Any]:
        """The JSON object as the API server stores it: absent rather than null."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


Replicas = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[int, Field(ge=0, le=10_000_000)]


# --- spec ------------------------------------------------------------------------------------------------


class ElasticPolicy(Model):
    """How many pods train, which sizes are legal and how patient the operator is."""

    min_replicas: Replicas | None = Field(
        default=None,
        description="Training runs whenever at least this many pods are up. Default: 1 where maxReplicas is "
        "given, else replicas.",
    )
    max_replicas: Replicas | None = Field(default=None, description="Never more pods than this. Default: replicas.")
    replica_increment_step: Replicas | None = Field(
        default=None,
        description="Only sizes minReplicas + k * step are legal worlds. Excludes replicaDiscreteValues.",
    )
    replica_discrete_values: list[Replicas] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Only these sizes are legal worlds. Excludes replicaIncrementStep.",
    )
    spares: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="Pods kept warm outside the world and swapped in when a member is lost."
    )
    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=10,
        description="Worker-caused restarts allowed per window, for the whole job. Lost pods, lost nodes and "
        "changes of size are free.",
    )
    restart_window_seconds: Seconds = Field(
        default=3600, description="Length of the window of maxRestarts; 0: the whole life of the job."
    )
    graceful_shutdown_timeout_seconds: Seconds = Field(
        default=30,
        description="Time a script has to checkpoint before it is stopped: the pods' grace period, the agent's "
        "patience and the script's signal all follow it.",
    )
    scaling_timeout_seconds: Seconds = Field(
        default=60,
        description="How long a pod above minReplicas may be unschedulable before it is withdrawn and tried "
        "again later.",
    )
    faulty_pod_timeout_seconds: Seconds = Field(
        default=30,
        description="How long a pod on a dead node, or one that ignores its deletion, is waited for before it "
        "is deleted by force.",
    )

    CEL = (
        (
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be greater than maxReplicas: lower minReplicas or raise maxReplicas",
        ),
        (
            "!(has(self.replicaIncrementStep) && has(self.replicaDiscreteValues))",
            "replicaIncrementStep and replicaDiscreteValues exclude each other: remove one of them",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_replicas and self.max_replicas and self.min_replicas > self.max_replicas:
            raise ValueError(self.CEL[0][1])
        if self.replica_increment_step and self.replica_discrete_values:
            raise ValueError(self.CEL[1][1])
        return self


class RendezvousBackend(StrEnum):
    OPERATOR = "operator"
    C10D = "c10d"
    ETCD_V2 = "etcd-v2"
    STATIC = "static"


class Rendezvous(Model):
    """Who tells the workers about the world: the operator, or one of torch's own backends."""

    backend: RendezvousBackend = Field(
        default=RendezvousBackend.OPERATOR,
        description="operator: membership by the operator. c10d, etcd-v2, static: torch's own, for images "
        "that cannot take the runtime; the operator then only keeps pods and environment.",
    )
    endpoint: str | None = Field(
        default=None,
        max_length=253,
        description="host:port of the store. Required by etcd-v2; c10d and static default to the DNS name of the pod "
        "with index 0.",
    )
    conf: dict[str, str] | None = Field(
        default=None, description="Further settings for the backend, as in torchrun --rdzv-conf."
    )

    CEL = (
        (
            "!has(self.backend) || self.backend != 'etcd-v2' || has(self.endpoint)",
            "rendezvous.endpoint is required by the backend etcd-v2: give host:port of the etcd server",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backend is RendezvousBackend.ETCD_V2 and not self.endpoint:
            raise ValueError(self.CEL[0][1])
        return self


class CleanPodPolicy(StrEnum):
    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RunPolicy(Model):
    """When the job runs, how long it may take and what is left of it."""

    suspend: bool = Field(default=False, description="Checkpoint, remove the pods, wait. False resumes.")
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The job fails when it ran longer than this; suspended time does not count."
    )
    startup_deadline_seconds: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The job fails when no world was formed this long after its start."
    )
    fault_deadline_seconds: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The job fails when it could not train for this long after a fault."
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        default=None, description="The finished job is deleted after this time. Default: kept."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy.RUNNING,
        description="Which pods are deleted when the job has finished: All, Running (finished ones stay for "
        "their logs; one whose sidecar runs on is not finished) or None.",
    )
    managed_by: str | None = Field(
        default=None,
        max_length=63,
        description="Another controller that manages this job (for example kueue.x-k8s.io/multikueue). "
        "The operator then leaves it alone.",
    )


class RuleAction(StrEnum):
    RESTART = "Restart"
    RESTART_IGNORE_BUDGET = "RestartIgnoreBudget"
    FAIL_JOB = "FailJob"


class OnExitCodes(Model):
    operator: Literal["In", "NotIn"] = Field(description="In or NotIn.")
    values: list[Annotated[int, Field(ge=-255, le=255)]] = Field(
        min_length=1, max_length=255, description="Exit codes; a signal n counts as 128 + n."
    )


class OnPodCondition(Model):
    type: str = Field(max_length=316, description="The condition's type, for example DisruptionTarget.")
    status: Literal["True", "False", "Unknown"] = Field(default="True", description="The condition's status.")


class FailureRule(Model):
    """What to do about a failure; the first rule that matches counts."""

    action: RuleAction = Field(description="Restart, RestartIgnoreBudget or FailJob.")
    on_exit_codes: OnExitCodes | None = Field(
        default=None, description="Matches the trainer's exit code or that of its worker process."
    )
    on_pod_conditions: list[OnPodCondition] | None = Field(
        default=None, min_length=1, max_length=20, description="Matches a condition of the failed pod."
    )

    CEL = (
        (
            "has(self.onExitCodes) != has(self.onPodConditions)",
            "a rule needs exactly one of onExitCodes and onPodConditions",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.on_exit_codes is None) == (self.on_pod_conditions is None):
            raise ValueError(self.CEL[0][1])
        return self


class FailurePolicy(Model):
    rules: list[FailureRule] = Field(default_factory=list, max_length=20, description="First match counts.")


class SuccessPolicy(StrEnum):
    ALL = "All"
    RANK0 = "Rank0"


class Preflight(StrEnum):
    OFF = "Off"
    NODE = "Node"
    NETWORK = "Network"


def _auto_or_seconds(value: int | str) -> int | str:
    if value == "auto" or (isinstance(value, int) and value >= 0):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    raise ValueError("must be 'auto' or a number of seconds (0 turns it off)")


class Health(Model):
    preflight: Preflight = Field(
        default=Preflight.OFF,
        description="Checks before a pod joins its first world: Off, Node (devices, memory, disk) or Network "
        "(and hub, names, ports).",
    )
    hang_timeout_seconds: Annotated[int | str, AfterValidator(_auto_or_seconds)] = Field(
        default="auto",
        description="A rank that reports no step for this long is dumped and restarted: 'auto' (from observed "
        "step time), seconds, or 0 for off.",
    )


class Network(Model):
    policy: bool = Field(
        default=True,
        description="A NetworkPolicy that lets only the job's own pods reach each other's ports.",
    )
    service: bool = Field(
        default=False,
        description="A headless Service, so that `<job>-worker-<index>.<job>-workers` resolves to the pod. "
        "Torch's own rendezvous backends have it anyway; with `operator` nothing but a script may need it.",
    )


class RuntimeInjection(StrEnum):
    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


def _nproc(value: int | str) -> int | str:
    if isinstance(value, int) and value >= 1:
        return value
    if isinstance(value, str):
        if value in ("auto", "cpu", "gpu"):
            return value
        if value.isdecimal() and int(value) >= 1:
            return int(value)
    raise ValueError("must be 'auto', 'cpu', 'gpu' or a number of processes, at least 1")


def _or_default(root: str, path: str, default: str) -> str:
    """CEL for a field of the spec, or its default where it or its parent is left out."""
    parts = path.split(".")
    there = " && ".join(f"has({'.'.join((root, *parts[:i]))})" for i in range(1, len(parts) + 1))
    value = f"{root}.{path}"
    return f"({there} ? {f'string({value})' if path == 'nprocPerNode' else value} : {default})"


class Spec(Model):
    """What the user wants."""

    replicas: Replicas | None = Field(
        default=None,
        description="Wanted pods, between minReplicas and maxReplicas; may change at any time. Default: maxReplicas.",
    )
    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy, description=(ElasticPolicy.__doc__ or ""))
    nproc_per_node: Annotated[int | str, AfterValidator(_nproc)] = Field(
        default="auto",
        description="Worker processes per pod: auto (the GPU count of the trainer's limits, else 1), cpu, gpu "
        "or a number.",
    )
    rendezvous: Rendezvous = Field(default_factory=Rendezvous, description=(Rendezvous.__doc__ or ""))
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description=(RunPolicy.__doc__ or ""))
    failure_policy: FailurePolicy = Field(
        default_factory=FailurePolicy,
        description="What failures mean. Without a rule: exit codes restart at the budget's cost, lost pods are free.",
    )
    success_policy: SuccessPolicy = Field(
        default=SuccessPolicy.ALL,
        description="All: every member of the last world ended well. Rank0: rank 0 did.",
    )
    health: Health = Field(default_factory=Health, description="Preflight and hang watch.")
    network: Network = Field(default_factory=Network, description="Who may reach the workers.")
    runtime_injection: RuntimeInjection = Field(
        default=RuntimeInjection.AUTO,
        description="Whether an init container brings the elasticjob runtime into the trainer: Auto (where the "
        "operator has a runtime image and the trainer is not our own image), Always, Never.",
    )
    template: Annotated[dict[str, Any], AfterValidator(podtemplate.check_template)] = Field(
        description="A pod template (core/v1 PodTemplateSpec). The first container trains, or the one named by "
        "the annotation elasticjob.dev/trainer-container.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )

    CEL = (
        (
            "!has(self.replicas) || !has(self.elasticPolicy) || !has(self.elasticPolicy.maxReplicas) || "
            "self.replicas <= self.elasticPolicy.maxReplicas",
            "replicas must not be greater than elasticPolicy.maxReplicas: lower replicas or raise maxReplicas",
        ),
        (
            "!has(self.replicas) || !has(self.elasticPolicy) || !has(self.elasticPolicy.minReplicas) || "
            "self.replicas >= self.elasticPolicy.minReplicas",
            "replicas must not be less than elasticPolicy.minReplicas: raise replicas or lower minReplicas",
        ),
        (
            "!has(self.elasticPolicy) || !has(self.elasticPolicy.replicaDiscreteValues) || "
            "self.elasticPolicy.replicaDiscreteValues.exists(v, "
            "(!has(self.elasticPolicy.minReplicas) || v >= self.elasticPolicy.minReplicas) && "
            "(!has(self.elasticPolicy.maxReplicas) || v <= self.elasticPolicy.maxReplicas))",
            "elasticPolicy.replicaDiscreteValues has no value between minReplicas and maxReplicas: add one",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        policy = self.elastic_policy
        if self.replicas is not None:
            if policy.max_replicas is not None and self.replicas > policy.max_replicas:
                raise ValueError(self.CEL[0][1])
            if policy.min_replicas is not None and self.replicas < policy.min_replicas:
                raise ValueError(self.CEL[1][1])
        if policy.replica_discrete_values and not any(
            (policy.min_replicas or 1) <= v <= (policy.max_replicas or v) for v in policy.replica_discrete_values
        ):
            raise ValueError(self.CEL[2][1])
        return self

    CEL_OF_CHANGES = tuple(
        (
            "has(self.runPolicy) && has(self.runPolicy.suspend) && self.runPolicy.suspend || "
            "has(oldSelf.runPolicy) && has(oldSelf.runPolicy.suspend) && oldSelf.runPolicy.suspend || "
            f"{_or_default('self', path, default)} == {_or_default('oldSelf', path, default)}",
            f"{path} cannot change while the job runs: suspend it (runPolicy.suspend), change the field, resume it",
        )
        for path, default in (
            ("nprocPerNode", "'auto'"),
            ("rendezvous.backend", "'operator'"),
            ("rendezvous.endpoint", "''"),
            ("rendezvous.conf", "{}"),
        )
    )

    @cached_property
    def template_hash(self) -> str:
        """Computed once a spec: a template may have a quarter of a megabyte."""
        return podtemplate.template_hash(self.template)

    @property
    def max_replicas(self) -> int:
        return self.elastic_policy.max_replicas or self.replicas or self.elastic_policy.min_replicas or 1

    @property
    def min_replicas(self) -> int:
        policy = self.elastic_policy
        return policy.min_replicas or (1 if policy.max_replicas else self.max_replicas)

    @property
    def wanted(self) -> int:
        """Wanted pods in the world, without spares."""
        return self.replicas or self.max_replicas


# --- status ----------------------------------------------------------------------------------------------


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


# --- parsing ---------------------------------------------------------------------------------------------


class Problem(Model):
    """One thing wrong with a job: the field, as a user would write its path, and what to do."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidJobError(ValueError):
    """A job that can never run."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(p) for p in self.problems))


_MESSAGES = {"missing": "is required"}


def parse_spec(raw: object) -> Spec:
    """Validates the `spec` of a job as read from YAML or the API; raises InvalidJobError naming every bad field."""
    if not isinstance(raw, dict):
        raise InvalidJobError([Problem(field="spec", message="is required: give at least spec.template")])
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        raise InvalidJobError(find_problems(error, "spec")) from None


def find_problems(error: ValidationError, root: str) -> list[Problem]:
    """What pydantic found, in the words of a user; one problem a field."""
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False, include_input=False):
        # The names of union branches ("int", "function-after[...]") are pydantic's, not the user's.
        path = tuple(p for p in item["loc"] if isinstance(p, int) or not _is_branch(p))
        if item["type"] == "extra_forbidden":
            message = f"is not a field of ElasticJob: {advise(path)}"
        else:
            message = _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
        field = spell(root, path)
        found.setdefault(field, Problem(field=field, message=message))
    return list(found.values())


def spell(root: str, path: Path) -> str:
    """A path as a user would write it: `spec.failurePolicy.rules[0].action`."""
    return root + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def _is_branch(part: str) -> bool:
    return part in ("int", "str", "constrained-int", "constrained-str") or "[" in part


# --- the names of fields ---------------------------------------------------------------------------------


def list_fields(model: type[BaseModel]) -> Fields:
    found: dict[str, Fields | None] = {}
    for name, field in model.model_fields.items():
        inner = (field.annotation, *get_args(field.annotation))
        inner = (*inner, *(deep for one in inner for deep in get_args(one)))
        models = [one for one in inner if isinstance(one, type) and issubclass(one, Model)]
        found[field.alias or name] = list_fields(models[0]) if models else None
    return found


FIELDS: Fields = list_fields(Spec)


def find_unknown(raw: Mapping[str, Any], fields: Fields = FIELDS, path: Path = ()) -> list[Path]:
    """The fields of a spec that this version does not know. It goes no deeper than the models do."""
    found: list[Path] = []
    for name, value in raw.items():
        here = (*path, name)
        if name not in fields:
            found.append(here)
        elif (inner := fields[name]) is not None:
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, item in items:
                if isinstance(item, Mapping):
                    found += find_unknown(item, inner, here if index is None else (*here, index))
    return found


def without(raw: Any, paths: Iterable[Path]) -> Any:
    """The value without what lies at these paths; what is not on one of them is shared."""
    by_head: dict[str | int, list[Path]] = {}
    for head, *rest in paths:
        by_head.setdefault(head, []).append(tuple(rest))
    if not by_head:
        return raw
    items = enumerate(raw) if isinstance(raw, list) else raw.items()
    kept = {k: without(v, by_head.get(k, ())) for k, v in items if () not in by_head.get(k, ())}
    return list(kept.values()) if isinstance(raw, list) else kept


def advise(path: Path) -> str:
    """What to do about a field that does not exist: the one that was meant, where it can be guessed."""
    name = str(path[-1])
    fields: Fields | None = FIELDS
    for part in path[:-1]:
        if isinstance(part, str):
            fields = (fields or {}).get(part)
    close = difflib.get_close_matches(name[:64], fields or (), 1)
    meant = _find_field(name, FIELDS, ()) or ((*path[:-1], close[0]) if close else None)
    return f"did you mean {spell('spec', meant)}?" if meant else "check the spelling, or remove it"


def _find_field(name: str, fields: Fields, path: Path) -> Path | None:
    if name in fields:
        return (*path, name)
    deeper = (_find_field(name, inner, (*path, part)) for part, inner in fields.items() if inner)
    return next((found for found in deeper if found), None)
