"""Every name that crosses a boundary: API group, labels, annotations, environment variables, object names.

No logic lives here beyond joining strings. The worker runtime keeps its own copy of the environment
variables (it must not import the operator); a test holds both lists together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

JobKey = tuple[str, str]  # (namespace, name) of an ElasticJob

GROUP: Final = "elasticjob.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ElasticJob"
PLURAL: Final = "elasticjobs"
SINGULAR: Final = "elasticjob"
SHORT_NAME: Final = "ej"

MANAGED_BY: Final = f"{GROUP}/operator"  # value of spec.managedBy that means "us"
TOKEN_AUDIENCE: Final = GROUP

# Labels on every object the operator creates.
LABEL_JOB: Final = f"{GROUP}/job-name"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_INDEX: Final = f"{GROUP}/replica-index"
LABEL_APP: Final = "app.kubernetes.io/managed-by"
LABEL_APP_VALUE: Final = "elasticjob-operator"

# Annotations.
ANNOTATION_TRAINER: Final = f"{GROUP}/trainer-container"  # on the template: which container trains
ANNOTATION_DIGEST: Final = f"{GROUP}/digest"  # on everything but pods: what it was built from
ANNOTATION_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"

# Environment of the trainer container.
ENV_NAME: Final = "ELASTICJOB_NAME"
ENV_NAMESPACE: Final = "ELASTICJOB_NAMESPACE"
ENV_UID: Final = "ELASTICJOB_UID"
ENV_POD_NAME: Final = "ELASTICJOB_POD_NAME"
ENV_POD_UID: Final = "ELASTICJOB_POD_UID"
ENV_POD_IP: Final = "ELASTICJOB_POD_IP"
ENV_NODE_NAME: Final = "ELASTICJOB_NODE_NAME"
ENV_INDEX: Final = "ELASTICJOB_REPLICA_INDEX"
ENV_HUB_URL: Final = "ELASTICJOB_HUB_URL"  # ws://host:port or wss://host:port
ENV_TOKEN_FILE: Final = "ELASTICJOB_TOKEN_FILE"  # noqa: S105 - the name of a variable
ENV_CA_FILE: Final = "ELASTICJOB_CA_FILE"
ENV_GRACE_SECONDS: Final = "ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS"
ENV_HANG_TIMEOUT: Final = "ELASTICJOB_HANG_TIMEOUT_SECONDS"  # "auto", "0" (off) or seconds
ENV_PREFLIGHT: Final = "ELASTICJOB_PREFLIGHT"  # Off, Node or Network

RENDEZVOUS_BACKEND: Final = "elasticjob"  # the torchrun.handlers entry point
MOUNT_PATH: Final = "/var/run/secrets/elasticjob.dev"  # projected volume: token, ca.crt
TOKEN_PATH: Final = f"{MOUNT_PATH}/token"
CA_PATH: Final = f"{MOUNT_PATH}/ca.crt"
VOLUME_TOKEN: Final = "elasticjob-token"  # noqa: S105
VOLUME_RUNTIME: Final = "elasticjob-runtime"
VOLUME_SHM: Final = "elasticjob-shm"
RUNTIME_PATH: Final = "/opt/elasticjob/runtime"
C10D_PORT: Final = 29400

GONE: Final = "the job is gone"
RANK_HUNG: Final = "RankHung"  # the reason of a failure: one rank holds the others up
WORLD_HUNG: Final = "WorldHung"  # the same, where nobody is known to


class Cause(StrEnum):
    """Why a world was formed, or why a pod leaves it: what the status says, and what a person reads."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Cause:
        made = str.__new__(cls, value)
        made._value_ = value
        made.sentence = sentence
        return made

    START = "start", "the job starts"
    SCALE_UP = "scale-up", "newcomers are ready"
    SCALE_DOWN = "scale-down", "fewer replicas are wanted"
    DRAIN = "drain", "a node is drained"
    NODE_LEAVING = "node-leaving", "a node is about to go"
    DISRUPTION = "disruption", "a pod is about to be disrupted"
    POD_DELETED = "pod-deleted", "a pod is being deleted"
    POD_LEAVING = "pod-leaving", "a pod was asked to stop"
    SUSPENDED = "suspended", "the job was suspended and resumed"
    LOST = "lost", "a member was lost"
    FAILED = "failed", "a worker failed"
    HUNG = "hung", "no rank made a step any more"
    REGROUP = "regroup", "members left the world and are ready again"
    PODS_CHANGED = "pods-changed", "other pods run than before"
    UNRESPONSIVE = "unresponsive", "the agent of a pod does not answer"


def tell_cause(reason: str | None) -> str:
    """The sentence of a cause; of one that a newer operator wrote, its word."""
    return next((cause.sentence for cause in Cause if cause == reason), reason or "")


def pod_name(job: str, index: int) -> str:
    """The name of the worker pod with this replica index; a pure function, so a stale cache only causes a 409."""
    return f"{job}-worker-{index}"


def service_name(job: str) -> str:
    """The headless Service of the job: `<pod>.<service>.<namespace>` resolves to the pod."""
    return f"{job}-workers"


def disruption_budget_name(job: str) -> str:
    return f"{job}-workers"


def network_policy_name(job: str) -> str:
    return f"{job}-workers"


def ca_config_map_name(job: str) -> str:
    """Holds `ca.crt`, by which the job's agents know the hub."""
    return f"{job}-elasticjob-ca"


def pod_group_name(job: str) -> str:
    return job


def selector(job: str) -> str:
    """The label selector behind the scale subresource."""
    return f"{LABEL_JOB}={job}"
