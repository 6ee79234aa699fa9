"""The parts of a spec, each with its rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from elasticjob_operator.api.base import MOST_SECONDS, Model, Replicas, Seconds, number_or, schema_of_number_or
from elasticjob_operator.api.health_rules import MOST_RULES, HealthRule
from elasticjob_operator.api.mesh import MeshDimension

MetricSpec = Annotated[
    dict[str, Any],
    Field(
        description="A MetricSpec of autoscaling/v2.", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}
    ),
]


Deadline = Annotated[int, Field(ge=1, le=2**31 - 1)]  # seconds


class ElasticPolicy(Model):
    """How many pods train, which sizes are legal, and the timeouts of the operator."""

    min_replicas: Replicas | None = Field(
        default=None,
        description="Training runs whenever at least this many pods are ready. Default: 1 if maxReplicas is "
        "set, else replicas.",
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
    mesh: list[MeshDimension] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="The DeviceMesh of the script, in its order, if a copy of the model needs several ranks. The "
        "dimension without a size grows and shrinks: a copy has the ranks that differ in the others only. Worlds have "
        "whole copies, a loss costs those that it touches, and members keep their places in the others. Excludes "
        "replicaIncrementStep.",
    )
    metrics: list[MetricSpec] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="The metrics of a HorizontalPodAutoscaler that the operator creates for the job; its bounds are "
        "minReplicas and maxReplicas. Requires maxReplicas.",
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
        description="Time that a script has to save a checkpoint before it is stopped. It sets the grace period of the "
        "pods and the timeouts of the agent.",
    )
    scaling_timeout_seconds: Seconds = Field(
        default=60,
        description="How long a pod above minReplicas may be unschedulable before it is withdrawn and retried later.",
    )
    faulty_pod_timeout_seconds: Seconds = Field(
        default=30,
        description="How long to wait for a pod on a dead node, or one that ignores its deletion, before it "
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
        (
            "!has(self.metrics) || has(self.maxReplicas)",
            "metrics needs maxReplicas: say how many pods the autoscaler may ask for",
        ),
        (
            "!(has(self.mesh) && has(self.replicaIncrementStep))",
            "mesh and replicaIncrementStep exclude each other: remove replicaIncrementStep, since worlds have "
            "whole copies of the model with mesh",
        ),
        (
            "!has(self.mesh) || self.mesh.filter(d, !has(d.size)).size() == 1",
            "mesh needs one dimension without a size, which grows and shrinks: leave out the size of one, or add one",
        ),
        (
            "!has(self.mesh) || self.mesh.all(d, self.mesh.filter(e, e.name == d.name).size() == 1)",
            "mesh has two dimensions of the same name: rename one of them",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_replicas and self.max_replicas and self.min_replicas > self.max_replicas:
            raise ValueError(self.CEL[0][1])
        if self.replica_increment_step and self.replica_discrete_values:
            raise ValueError(self.CEL[1][1])
        if self.metrics and self.max_replicas is None:
            raise ValueError(self.CEL[2][1])
        if self.mesh is not None:
            if self.replica_increment_step:
                raise ValueError(self.CEL[3][1])
            if sum(dimension.size is None for dimension in self.mesh) != 1:
                raise ValueError(self.CEL[4][1])
            if len({dimension.name for dimension in self.mesh}) < len(self.mesh):
                raise ValueError(self.CEL[5][1])
        return self


class RendezvousBackend(StrEnum):
    OPERATOR = "operator"
    C10D = "c10d"
    ETCD_V2 = "etcd-v2"
    STATIC = "static"


class Rendezvous(Model):
    """How the workers rendezvous: by the operator, or by one of torch's own backends."""

    backend: RendezvousBackend = Field(
        default=RendezvousBackend.OPERATOR,
        description="operator: the operator manages membership. c10d, etcd-v2, static: torch's own backends, "
        "for images "
        "without the runtime; the operator then manages only pods and their environment.",
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
    """When the job runs, how long it may take, and what is cleaned up afterwards."""

    suspend: bool = Field(default=False, description="Checkpoint, remove the pods, wait. False resumes.")
    active_deadline_seconds: Deadline | None = Field(
        default=None,
        description="The job fails if it runs longer than this. Suspended time does not count. In the mode Goodput the "
        "pool keeps the job large enough for it.",
    )
    startup_deadline_seconds: Deadline | None = Field(
        default=None, description="The job fails if no world has been formed this long after its start."
    )
    fault_deadline_seconds: Deadline | None = Field(
        default=None, description="The job fails if it could not train for this long after a failure."
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        default=None, description="The finished job is deleted after this time. Default: it is kept."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy.RUNNING,
        description="Which pods are deleted when the job has finished: All, Running (finished pods are kept for "
        "their logs; a pod with a running sidecar is not finished) or None.",
    )
    managed_by: str | None = Field(
        default=None,
        max_length=63,
        description="The former name of spec.managedBy, still accepted.",
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
    """What to do about a failure. The first matching rule applies."""

    action: RuleAction = Field(description="Restart, RestartIgnoreBudget or FailJob.")
    on_exit_codes: OnExitCodes | None = Field(
        default=None, description="Matches the exit code of the trainer container or of its worker process."
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
    rules: list[FailureRule] = Field(
        default_factory=list, max_length=20, description="The first matching rule applies."
    )


class SuccessPolicy(StrEnum):
    ALL = "All"
    RANK0 = "Rank0"


class Preflight(StrEnum):
    OFF = "Off"
    NODE = "Node"
    NETWORK = "Network"


class AvoidNodes(StrEnum):
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class Stragglers(StrEnum):
    REPORT = "Report"
    REPLACE = "Replace"


_HANG_TIMEOUT = number_or(
    "auto",
    least=0,
    most=MOST_SECONDS,
    otherwise="must be 'auto' or a number of seconds (0 turns it off), at most 10000000",
)


class Health(Model):
    preflight: Preflight = Field(
        default=Preflight.OFF,
        description="Checks before a pod joins its first world: Off, Node (versions, devices, memory, disk, names, "
        "ports, clock) or Network (and every collective, in the pod, and the links to pods on other nodes).",
    )
    preflight_timeout_seconds: int = Field(
        default=180,
        ge=10,
        le=3600,
        description="The limit of the preflight. A pod whose own checks take longer fails; one that waits for others "
        "goes on.",
    )
    hang_timeout_seconds: Annotated[int | str, _HANG_TIMEOUT] = Field(
        default="auto",
        description="If no step is reported for this long, stacks are dumped and the workers restarted: 'auto' "
        "(from the observed step time), seconds, or 0 for off.",
        json_schema_extra=schema_of_number_or("auto", least=0, most=MOST_SECONDS),
    )
    avoid_nodes: AvoidNodes = Field(
        default=AvoidNodes.PREFERRED,
        description="How new pods avoid nodes with repeated faults, seen by jobs of the namespace or of two others. "
        "Preferred: if there is room elsewhere. Required: they wait for other nodes, unless only others say so.",
    )
    stragglers: Stragglers | None = Field(
        default=None,
        description="What to do about a rank that is 1.5 times as slow as the others for a minute. Report: name it in "
        "status.stragglers. Replace: a spare or a new pod on another node also takes its place, if that pays. Left "
        "out: nothing is measured.",
    )
    compare_every_steps: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Every how many steps sessions compare their replicas, of the model or of each shard; 0: never. A "
        "rank that differs from most of them is excluded, and all go back to the last step that they agreed on.",
    )
    rules: list[HealthRule] | None = Field(
        default=None,
        max_length=MOST_RULES,
        description="What counts as sick in this training, and what is done about it. Left out: a loss that is not "
        "finite is reported. An empty list: nothing is.",
    )

    CEL = (
        (
            "!has(self.rules) || self.rules.all(a, self.rules.exists_one(b, a.name == b.name))",
            "two rules have the same name: give each its own",
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rules and len({rule.name for rule in self.rules}) < len(self.rules):
            raise ValueError(self.CEL[0][1])
        return self


class Network(Model):
    policy: bool = Field(
        default=True,
        description="A NetworkPolicy that lets only the job's own pods reach each other's ports.",
    )
    service: bool = Field(
        default=False,
        description="Create a headless Service, so that `<job>-worker-<index>.<job>-workers` resolves to the pod; in a "
        "long name, or one with dots, a digest stands for a part. "
        "Torch's own rendezvous backends always get it; with `operator`, only a script may need it.",
    )


class RuntimeInjection(StrEnum):
    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"
