"""The spec of an ElasticJob: the desired state."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from elasticjob_operator import quantity
from elasticjob_operator.api import names
from elasticjob_operator.api.base import Model, Replicas, number_or, schema_of_number_or
from elasticjob_operator.api.mesh import Cut, Layout, find_cut
from elasticjob_operator.api.podtemplate import (
    MOST_PROCESSES,
    Shape,
    check_template,
    find_mount,
    find_shape,
    resolve_nproc,
    template_hash,
)
from elasticjob_operator.api.policies import (
    ElasticPolicy,
    FailurePolicy,
    Health,
    Network,
    Rendezvous,
    RendezvousBackend,
    RunPolicy,
    RuntimeInjection,
    SuccessPolicy,
)


class ScalingMode(StrEnum):
    """Who chooses the number of pods."""

    MANUAL = "Manual"
    GOODPUT = "Goodput"


class Scaling(Model):
    """Who chooses the number of pods between minReplicas and maxReplicas."""

    mode: ScalingMode = Field(
        default=ScalingMode.MANUAL,
        description="Manual: replicas does, which people and autoscalers write. Goodput: the operator shares the pool "
        "of devices among such jobs by what each makes of them; leave replicas out, since a number that you write "
        "there holds until you take it out again.",
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="What a speed-up of this job counts beside others, up to what the administrator allows.",
    )


def _or_default(root: str, path: str, default: str) -> str:
    """CEL for the value of a spec field, or its default if the field or its parent is absent."""
    parts = path.split(".")
    there = " && ".join(f"has({'.'.join((root, *parts[:i]))})" for i in range(1, len(parts) + 1))
    value = f"{root}.{path}"
    return f"({there} ? {f'string({value})' if path == 'nprocPerNode' else value} : {default})"


# CEL for the controller that manages a job, from either field.
_MANAGER = (
    "(has({0}.managedBy) ? {0}.managedBy : has({0}.runPolicy) && has({0}.runPolicy.managedBy) ? "
    f"{{0}}.runPolicy.managedBy : '{names.MANAGED_BY}')"
)


class TemplateRef(Model):
    """The ElasticJobTemplate whose fields hold wherever this spec leaves them out."""

    kind: Literal["ElasticJobTemplate"] = Field(default="ElasticJobTemplate", description=names.TEMPLATE_KIND)
    name: str = Field(
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="It is looked for in the namespace of the job, and then in that of the operator.",
    )


class CheckpointMedium(StrEnum):
    DISK = "Disk"
    MEMORY = "Memory"


def _quantity(value: str) -> str:
    if quantity.parse(value) <= 0:
        raise ValueError("must be more than 0")
    return value


# For the API server. Whether the amount is in range is the operator's to say.
_QUANTITY_SCHEMA = Field(json_schema_extra={"pattern": r"^[0-9.]{1,24}([eE][0-9]{1,2}|[munkMGTPE]|[KMGTPE]i)?$"})


# A part of a path begins with a letter, a digit or one of these: so no part is "..", and none is hidden.
_PARTS = r"(/[A-Za-z0-9_=][A-Za-z0-9._=-]*)"
_URL = rf"^(file://{_PARTS}+|(s3|gs|az)://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]{_PARTS}*)/?$"
_MOST_URL = 1024


def _url(value: str) -> str:
    if len(value) > _MOST_URL or not re.fullmatch(_URL, value):
        raise ValueError(
            "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///PATH: of letters, "
            "digits, '.', '_', '=' and '-', and no part of it begins with a dot or a dash"
        )
    return value


_StoreUrl = Annotated[str, AfterValidator(_url), Field(json_schema_extra={"pattern": _URL, "maxLength": _MOST_URL})]


class Archive(Model):
    """A store that outlives all pods: finished checkpoints are sent there, and read when no pod has one any more."""

    to: _StoreUrl = Field(
        description="s3://BUCKET/PREFIX, gs://…, az://CONTAINER/PREFIX, or file:///PATH on a volume of the template. "
        "Each job has a folder of its own below it: NAMESPACE/NAME/UID.",
    )
    every_seconds: Annotated[int, Field(ge=1, le=604800)] = Field(
        default=600, description="How often the last finished checkpoint is sent, if there is a new one."
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="How many of the newest saves are kept; older ones of this job are deleted."
    )
    credentials_secret: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="A Secret in the namespace of the job, which only its pods read: AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL …; GOOGLE_APPLICATION_CREDENTIALS (the key file itself); "
        "AZURE_STORAGE_CONNECTION_STRING …. Default: the identity of the pod.",
    )


class CheckpointOrigin(Model):
    """The save of another job to begin from, where this one has none yet: so a run is forked, or moved."""

    archive: _StoreUrl | None = Field(
        default=None,
        description="The folder of that job, as its condition CheckpointArchived and `kubectl elasticjob checkpoints` "
        "name it. It is only read, with the credentials of checkpoints.archive.",
    )
    job: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Instead of archive: the name of that job, in the same namespace. This one waits until it has "
        "archived the save, and keeps the folder in status.origin when it starts.",
    )
    step: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        default=None, description="The step of the save. Default: the newest."
    )

    CEL = (
        (
            "has(self.archive) != has(self.job)",
            "checkpoints.from needs either job, a job of this namespace, or archive, the folder of any job",
        ),
    )

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.archive is None) == (self.job is None):
            raise ValueError(self.CEL[0][1])
        return self


class Checkpoints(Model):
    """A checkpoint directory that survives without a volume: each pod has its own, and other pods hold copies."""

    path: str = Field(
        pattern=r"^/[^:]*[^:/]$",
        max_length=1024,
        description="The directory in the trainer container, which must not be on a volume of the template.",
    )
    replicas: Annotated[int, Field(ge=1, le=10)] = Field(
        default=1,
        description="How many other pods hold a copy of each finished checkpoint, on other nodes if possible: so many "
        "pods may be lost at once.",
    )
    medium: CheckpointMedium = Field(
        default=CheckpointMedium.DISK,
        description="Disk: of the node. Memory: counts against the memory limit of the container.",
    )
    size_limit: Annotated[str, AfterValidator(_quantity), _QUANTITY_SCHEMA] | None = Field(
        default=None,
        max_length=32,
        description="Bytes in each pod, for its own files and the copies that it holds. Default: any.",
    )
    archive: Archive | None = Field(default=None, description=(Archive.__doc__ or ""))
    from_: CheckpointOrigin | None = Field(default=None, description=(CheckpointOrigin.__doc__ or ""))

    CEL = (
        (
            "!has(self.from) || has(self.archive)",
            "checkpoints.from needs checkpoints.archive: say where this job keeps its own checkpoints",
        ),
    )

    def find_urls(self) -> list[tuple[str, str]]:
        """The stores that are used, with the fields that name them."""
        found = [] if self.archive is None else [("checkpoints.archive.to", self.archive.to)]
        origin = None if self.from_ is None else self.from_.archive
        return found if origin is None else [*found, ("checkpoints.from.archive", origin)]

    @model_validator(mode="after")
    def _has_archive(self) -> Self:
        if self.from_ is not None and self.archive is None:
            raise ValueError(self.CEL[0][1])
        return self


_NPROC = number_or(
    *("auto", "cpu", "gpu"),
    least=1,
    most=MOST_PROCESSES,
    otherwise=f"must be 'auto', 'cpu', 'gpu' or a number of processes, from 1 to {MOST_PROCESSES}",
)


_ABOVE = (
    "replicas must not be greater than elasticPolicy.maxReplicas: lower replicas (kubectl scale, if it is not in your "
    "file) or raise maxReplicas"
)
_BELOW = (
    "replicas must not be less than elasticPolicy.minReplicas: raise replicas (kubectl scale, if it is not in your "
    "file) or lower minReplicas"
)


def _bounding(bound: str, relation: str, message: str) -> tuple[str, str]:
    """The rule that `replicas` is in this relation to a bound, unless nobody but the operator has written it."""
    rule = (
        f"!has(self.spec.replicas) || !has(self.spec.elasticPolicy) || !has(self.spec.elasticPolicy.{bound}) || "
        f"self.spec.replicas {relation} self.spec.elasticPolicy.{bound} || "
        "has(self.status) && has(self.status.writtenReplicas) && self.status.writtenReplicas == self.spec.replicas"
    )
    return rule, message


class Code(Model):
    """A later revision of the code that was sent with the job, as `kubectl elasticjob update` writes it."""

    revision: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        description="Its number. One that is not greater than any before is not taken."
    )
    digest: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[0-9a-f]{64}$",
        description="Of what one of the ConfigMaps NAME-update-a and NAME-update-b of the job has: files, arguments "
        "and variables. Default: what the job was submitted with.",
    )


class Spec(Model):
    """The desired state."""

    template_ref: TemplateRef | None = Field(default=None, description=(TemplateRef.__doc__ or ""))
    replicas: Replicas | None = Field(
        default=None,
        description="Wanted pods, between minReplicas and maxReplicas; may change at any time. Default: maxReplicas, "
        "also when that changes.",
    )
    scaling: Scaling = Field(default_factory=Scaling, description=(Scaling.__doc__ or ""))
    elastic_policy: ElasticPolicy = Field(default_factory=ElasticPolicy, description=(ElasticPolicy.__doc__ or ""))
    nproc_per_node: Annotated[int | str, _NPROC] = Field(
        default="auto",
        description="Worker processes per pod: auto (the accelerators of the trainer, else 1), cpu (those of the "
        "trainer, or of its node if it names none), gpu or a number, at most 1024.",
        json_schema_extra=schema_of_number_or("auto", "cpu", "gpu", least=1, most=MOST_PROCESSES),
    )
    rendezvous: Rendezvous = Field(default_factory=Rendezvous, description=(Rendezvous.__doc__ or ""))
    managed_by: str | None = Field(
        default=None,
        max_length=63,
        description="Another controller that manages this job (for example kueue.x-k8s.io/multikueue). The operator "
        "then leaves it alone. Default: elasticjob.dev/operator.",
    )
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description=(RunPolicy.__doc__ or ""))
    failure_policy: FailurePolicy = Field(
        default_factory=FailurePolicy,
        description="What to do about failures. Without a rule, exit codes are charged to the restart budget "
        "and lost pods are free.",
    )
    success_policy: SuccessPolicy = Field(
        default=SuccessPolicy.ALL,
        description="All: the job succeeds if every member of the last world succeeds. Rank0: if rank 0 does.",
    )
    health: Health = Field(default_factory=Health, description="Preflight and hang detection.")
    network: Network = Field(default_factory=Network, description="Network access to the workers.")
    checkpoints: Checkpoints | None = Field(default=None, description=(Checkpoints.__doc__ or ""))
    code: Code | None = Field(default=None, description=(Code.__doc__ or ""))
    runtime_injection: RuntimeInjection = Field(
        default=RuntimeInjection.AUTO,
        description="Whether an init container copies the elasticjob runtime into the trainer: Auto (if the "
        "operator has a runtime image and the trainer does not use the elasticjob worker image), Always, Never.",
    )
    template: Annotated[dict[str, Any], AfterValidator(check_template)] = Field(
        description="A pod template (core/v1 PodTemplateSpec). The first container trains, or the one named by "
        "the annotation elasticjob.dev/trainer-container. Required without templateRef.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )

    CEL = (
        (
            "!has(self.elasticPolicy) || !has(self.elasticPolicy.replicaDiscreteValues) || "
            "self.elasticPolicy.replicaDiscreteValues.exists(v, "
            "(!has(self.elasticPolicy.minReplicas) || v >= self.elasticPolicy.minReplicas) && "
            "(!has(self.elasticPolicy.maxReplicas) || v <= self.elasticPolicy.maxReplicas))",
            "elasticPolicy.replicaDiscreteValues has no value between minReplicas and maxReplicas: add one",
        ),
        (
            "!has(self.managedBy) || !has(self.runPolicy) || !has(self.runPolicy.managedBy) || "
            "self.managedBy == self.runPolicy.managedBy",
            "managedBy and runPolicy.managedBy name different controllers: remove runPolicy.managedBy",
        ),
        (
            "!has(self.scaling) || !has(self.scaling.mode) || self.scaling.mode != 'Goodput' || "
            "has(self.elasticPolicy) && has(self.elasticPolicy.maxReplicas) || has(self.templateRef)",
            "scaling.mode Goodput needs elasticPolicy.maxReplicas: say how many pods the job may have",
        ),
        (
            "has(self.template) || has(self.templateRef)",
            "template is required: set a pod template, or name an ElasticJobTemplate in templateRef; "
            "`kubectl elasticjob convert` makes it from a job of another operator",
        ),
        (
            "!has(self.scaling) || !has(self.scaling.mode) || self.scaling.mode != 'Goodput' || "
            "!has(self.elasticPolicy) || !has(self.elasticPolicy.metrics)",
            "scaling.mode Goodput and elasticPolicy.metrics exclude each other: both choose the number of pods",
        ),
        (
            "!has(self.checkpoints) || !has(self.rendezvous) || !has(self.rendezvous.backend) || "
            "self.rendezvous.backend == 'operator'",
            "checkpoints needs the rendezvous backend operator: remove checkpoints or rendezvous.backend",
        ),
        (
            "!has(self.elasticPolicy) || !has(self.elasticPolicy.mesh) || !has(self.nprocPerNode) || "
            "string(self.nprocPerNode) != 'cpu'",
            "elasticPolicy.mesh needs equally many processes in all pods: set nprocPerNode to a number, gpu or auto",
        ),
    )

    CEL_OF_JOBS = (
        _bounding("maxReplicas", "<=", _ABOVE),
        _bounding("minReplicas", ">=", _BELOW),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        policy = self.elastic_policy
        if self.replicas is not None:
            if policy.max_replicas is not None and self.replicas > policy.max_replicas:
                raise ValueError(_ABOVE)
            if policy.min_replicas is not None and self.replicas < policy.min_replicas:
                raise ValueError(_BELOW)
        if policy.replica_discrete_values and not any(
            (policy.min_replicas or 1) <= v <= (policy.max_replicas or v) for v in policy.replica_discrete_values
        ):
            raise ValueError(self.CEL[0][1])
        if self.managed_by and self.run_policy.managed_by not in (None, self.managed_by):
            raise ValueError(self.CEL[1][1])
        if self.is_pooled and policy.max_replicas is None:
            raise ValueError(self.CEL[2][1])
        if self.is_pooled and policy.metrics:
            raise ValueError(self.CEL[4][1])
        if policy.mesh is not None and self.nproc_per_node == "cpu":
            raise ValueError(self.CEL[6][1])
        return self

    @model_validator(mode="after")
    def _can_keep_checkpoints(self) -> Self:
        if self.checkpoints is None:
            return self
        if self.rendezvous.backend is not RendezvousBackend.OPERATOR:
            raise ValueError(self.CEL[5][1])
        mounted = find_mount(self.template, self.checkpoints.path)
        if mounted:
            raise ValueError(
                f"checkpoints.path {self.checkpoints.path} is on the volume mounted at {mounted}: remove "
                "checkpoints if the volume keeps the files, or choose another path"
            )
        for field, url in self.checkpoints.find_urls():
            path = url.removeprefix("file://")
            mount = find_mount(self.template, path)
            if path != url and not (mount and f"{path}/".startswith(f"{mount}/")):
                raise ValueError(
                    f"{field} {url} is on no volume of the template, so it would be lost with the pod: mount one "
                    "that outlives the pods"
                )
        return self

    CEL_OF_CHANGES = (
        (
            f"{_MANAGER.format('self')} == {_MANAGER.format('oldSelf')}",
            "managedBy cannot change: delete the job, and create it with the other value",
        ),
        (
            "(has(self.templateRef) ? self.templateRef.name : '') == "
            "(has(oldSelf.templateRef) ? oldSelf.templateRef.name : '')",
            "templateRef cannot change: delete the job, and create it with the other template",
        ),
        *(
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
        ),
    )

    @cached_property
    def shape(self) -> Shape:
        """The template in two parts, of which one can change in running pods."""
        return find_shape(self.template)

    @cached_property
    def template_hash(self) -> str:
        """Cached, since a template may have a quarter of a megabyte."""
        return template_hash(self.template)

    @property
    def manager(self) -> str:
        """The controller that manages the job, from either field; "" if none is named."""
        return self.managed_by or self.run_policy.managed_by or ""

    @property
    def is_ours(self) -> bool:
        return names.is_ours(self.manager)

    @property
    def is_pooled(self) -> bool:
        """Whether the operator chooses the number of pods, unless somebody has written one."""
        return self.scaling.mode is ScalingMode.GOODPUT

    @property
    def max_replicas(self) -> int:
        return self.elastic_policy.max_replicas or self.replicas or self.elastic_policy.min_replicas or 1

    @property
    def min_replicas(self) -> int:
        """With a mesh, so many pods that they hold whole copies of the model, if there may be as many."""
        policy, step = self.elastic_policy, self.layout.step
        least = policy.min_replicas or (1 if policy.max_replicas else self.max_replicas)
        whole = -(-least // step) * step
        return whole if whole <= self.max_replicas else least

    @property
    def cut(self) -> Cut:
        """How the ranks of a world hold the copies of the model; without a mesh, each pod has at least one."""
        mesh = self.elastic_policy.mesh
        return Cut() if mesh is None else find_cut(mesh, resolve_nproc(self.nproc_per_node, self.template))

    @property
    def layout(self) -> Layout:
        """How the pods of a world hold the copies of the model."""
        return self.cut.layout

    @property
    def wanted(self) -> int:
        """Requested pods in the world, without spares."""
        return self.replicas or self.max_replicas
