"""Every name that crosses a boundary: API group, labels, annotations, environment variables, object names.

What is derived from the name of a job fits every name that the API server accepts. The worker runtime has its own copy
of the environment variables, because it must not import the operator; a test keeps both lists consistent.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

# (namespace, name) of an ElasticJob. This is where shards would be cut (docs/scale.md): a hub, its registry, its cache
# and its queue for the keys that hash to it. Across jobs they share only limits, by namespace and by address.
JobKey = tuple[str, str]

GROUP: Final = "elasticjob.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ElasticJob"
PLURAL: Final = "elasticjobs"
SINGULAR: Final = "elasticjob"
SHORT_NAME: Final = "ej"
TEMPLATE_KIND: Final = "ElasticJobTemplate"
TEMPLATE_PLURAL: Final = "elasticjobtemplates"

MANAGED_BY: Final = f"{GROUP}/operator"  # the value of spec.managedBy that selects this operator
TOKEN_AUDIENCE: Final = GROUP

# Labels on every object the operator creates.
LABEL_JOB: Final = f"{GROUP}/job-name"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_INDEX: Final = f"{GROUP}/replica-index"
TAINT_FAULTY: Final = f"{GROUP}/faulty"  # on nodes, if the administrator wants it
CONDITION_FAULTY: Final = f"{GROUP}/Faulty"  # the same, for controllers that repair nodes
LABEL_APP: Final = "app.kubernetes.io/managed-by"
LABEL_APP_VALUE: Final = "elasticjob-operator"
FIELD_MANAGER: Final = "elasticjob-operator"  # the API server takes it from the user agent

KUEUE: Final = "kueue.x-k8s.io"
LABEL_QUEUE: Final = f"{KUEUE}/queue-name"  # of a job
MULTIKUEUE: Final = f"{KUEUE}/multikueue"  # the value of spec.managedBy of a job that is sent to another cluster
LABEL_ORIGIN: Final = f"{KUEUE}/multikueue-origin"  # of a job that MultiKueue has sent here from another cluster
LABEL_PRIORITY: Final = f"{KUEUE}/priority-class"  # of a job
PREBUILT: Final = f"{KUEUE}/prebuilt-workload-name"  # a label, or an annotation where the name is too long for one
ANNOTATION_GROWTH_PRIORITY: Final = f"{GROUP}/growth-priority-class"  # of what a job has above minReplicas
# The labels and annotations of a job that the operator reads more than once.
MARKS: Final = frozenset({LABEL_QUEUE, LABEL_ORIGIN, LABEL_PRIORITY, PREBUILT, ANNOTATION_GROWTH_PRIORITY})

# Annotations.
ANNOTATION_TRAINER: Final = f"{GROUP}/trainer-container"  # on the template, and on every pod: which container trains
ANNOTATION_DIGEST: Final = f"{GROUP}/digest"  # on every object except pods: a digest of its inputs
ANNOTATION_DEFAULT: Final = f"{GROUP}/default-replicas"  # as the operator wrote spec.replicas, for want of one
ANNOTATION_POOL: Final = f"{GROUP}/pool-replicas"  # the number that the pool last wrote to spec.replicas
ANNOTATION_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
ANNOTATION_TEMPLATE_SHAPE: Final = f"{GROUP}/template-shape"  # without the amounts of CPU and memory
ANNOTATION_RELEASE: Final = f"{GROUP}/release"  # of the operator that has made a pod, whose hub its agent follows
ANNOTATION_CODE: Final = f"{GROUP}/code-digest"  # on a job, its pods and its ConfigMap: the code that was sent with it

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
ENV_COMPARE_EVERY_STEPS: Final = "ELASTICJOB_COMPARE_EVERY_STEPS"  # only if wanted
ENV_STRAGGLER_SECONDS: Final = "ELASTICJOB_STRAGGLER_SECONDS"  # over which paces are compared; only if wanted
ENV_LOG_RULES: Final = "ELASTICJOB_LOG_RULES"  # JSON: what is looked for in the ranks' output; only if wanted
ENV_HANG_TIMEOUT: Final = "ELASTICJOB_HANG_TIMEOUT_SECONDS"  # "auto", "0" (off) or seconds
ENV_TERMINATION_LOG: Final = "ELASTICJOB_TERMINATION_LOG"  # the file whose end the kubelet tells
TRACEPARENT: Final = "TRACEPARENT"  # W3C Trace Context; the agent puts the span of its world in
ENV_PREFLIGHT: Final = "ELASTICJOB_PREFLIGHT"  # Off, Node or Network
ENV_PREFLIGHT_SECONDS: Final = "ELASTICJOB_PREFLIGHT_TIMEOUT_SECONDS"
ENV_CHECKPOINTS: Final = "ELASTICJOB_CHECKPOINTS"
ENV_CHECKPOINT_COPIES: Final = "ELASTICJOB_CHECKPOINT_COPIES"
ENV_CHECKPOINT_REPLICAS: Final = "ELASTICJOB_CHECKPOINT_REPLICAS"
ENV_CHECKPOINT_BYTES: Final = "ELASTICJOB_CHECKPOINT_BYTES"
ENV_ARCHIVE: Final = "ELASTICJOB_ARCHIVE"
ENV_ARCHIVE_SECONDS: Final = "ELASTICJOB_ARCHIVE_EVERY_SECONDS"
ENV_ARCHIVE_KEEP: Final = "ELASTICJOB_ARCHIVE_KEEP"
ENV_ARCHIVE_CREDENTIALS: Final = "ELASTICJOB_ARCHIVE_CREDENTIALS"
ENV_ARCHIVE_FROM: Final = "ELASTICJOB_ARCHIVE_FROM"
ENV_ARCHIVE_FROM_STEP: Final = "ELASTICJOB_ARCHIVE_FROM_STEP"

TERMINATION_LOG: Final = "/dev/termination-log"  # Kubernetes' default
RENDEZVOUS_BACKEND: Final = "elasticjob"  # the torchrun.handlers entry point
MOUNT_PATH: Final = "/var/run/secrets/elasticjob.dev"  # projected volume: token, ca.crt
TOKEN_PATH: Final = f"{MOUNT_PATH}/token"
CA_PATH: Final = f"{MOUNT_PATH}/ca.crt"
VOLUME_TOKEN: Final = "elasticjob-token"  # noqa: S105
VOLUME_CHECKPOINTS: Final = "elasticjob-checkpoints"
COPIES_PATH: Final = "/var/run/elasticjob.dev/copies"  # of the other pods' checkpoints
VOLUME_ARCHIVE: Final = "elasticjob-archive"
ARCHIVE_PATH: Final = "/var/run/secrets/elasticjob.dev-archive"  # the Secret with the credentials of the archive
VOLUME_RUNTIME: Final = "elasticjob-runtime"
VOLUME_SHM: Final = "elasticjob-shm"
RUNTIME_PATH: Final = "/opt/elasticjob/runtime"
VOLUME_CODE: Final = "elasticjob-code"
CODE_PATH: Final = "/opt/elasticjob/code"  # what was sent with the job, read-only
VOLUME_UPDATE: Final = "elasticjob-update"
UPDATES_PATH: Final = "/opt/elasticjob/updates"  # one folder for each of the two ConfigMaps of later revisions
UPDATE_SLOTS: Final = ("a", "b")  # the revision in force is in one of them, and the next one goes into the other
UPDATE_INDEX: Final = "revision.json"  # the key that says what the others are
VOLUME_PACKAGES: Final = "elasticjob-packages"
PACKAGES_PATH: Final = "/opt/elasticjob/packages"  # what its requirements.txt asks for
C10D_PORT: Final = 29400

GONE: Final = "the job is gone"
RANK_HUNG: Final = "RankHung"  # the reason of a failure: one known rank holds the others up
WORLD_HUNG: Final = "WorldHung"  # the reason of a hang if no such rank is known


class Cause(StrEnum):
    """Why a world was formed, or why a pod leaves it: the status value, and a sentence for events and reports."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Cause:
        made = str.__new__(cls, value)
        made._value_ = value
        made.sentence = sentence
        return made

    START = "start", "the job starts"
    SCALE_UP = "scale-up", "new pods are ready to join"
    SCALE_DOWN = "scale-down", "fewer replicas are requested"
    DRAIN = "drain", "a node is being drained"
    NODE_LEAVING = "node-leaving", "a node is about to be removed"
    DISRUPTION = "disruption", "a pod is about to be disrupted"
    DEVICE = "device", "a device of a pod is unhealthy"
    POD_DELETED = "pod-deleted", "a pod is being deleted"
    POD_LEAVING = "pod-leaving", "a pod was asked to stop"
    SUSPENDED = "suspended", "the job was suspended and resumed"
    LOST = "lost", "a member was lost"
    FAILED = "failed", "a worker failed"
    HUNG = "hung", "the world hung: no rank completed a step"
    REGROUP = "regroup", "members left the world without a failure and are ready again"
    PODS_CHANGED = "pods-changed", "the set of running pods changed"
    UNRESPONSIVE = "unresponsive", "the agent of a pod does not respond"
    STRAGGLER = "straggler", "a slow member is replaced"
    RULE = "rule", "a rule of spec.health.rules ended the world"
    UPDATE = "update", "the code of the job was updated"
    QUOTA = "quota", "the queue took quota back"


def describe_cause(reason: str | None) -> str:
    """The sentence for a cause; for an unknown cause, written by a newer operator, the value itself."""
    return next((cause.sentence for cause in Cause if cause == reason), reason or "")


def is_ours(manager: str) -> bool:
    """Whether this operator runs a job with this `managedBy`; "": none is named."""
    return manager in ("", MANAGED_BY)


# The API server accepts any DNS subdomain of up to 253 characters as the name of a job. What is derived from it keeps
# that name where it fits its kind; otherwise it is cut, and ends with a digest of the whole name. No name that is kept
# ends like that, and no digest can be aimed at: two jobs never need the same name.

_SUBDOMAIN: Final = 253  # characters of most names
_LABEL: Final = 63  # of the value of a label, of a host name, and of a Service's name
_DIGITS: Final = 16  # of a digest
_INDEX: Final = len("-999999999")  # the longest replica index
_HOST: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def _digest(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()


def _fit(job: str, suffix: str, most: int, shape: re.Pattern[str] | None = None) -> str:
    """`<job><suffix>` if it is short enough and has this shape, or else a readable part of it with a digest."""
    if len(job) + len(suffix) <= most and (shape is None or shape.fullmatch(job + suffix)):
        return job + suffix
    plain = job if shape is None else job.replace(".", "-")
    if shape is _SERVICE and plain[:1].isdigit():
        plain = f"job-{plain}"
    end = f"{suffix}-{_digest(job)[:_DIGITS]}"
    return plain[: most - len(end)].rstrip("-.") + end


def label(job: str) -> str:
    """The value of LABEL_JOB. It has no suffix: one with a digest is as long as a label can be, and no other is."""
    if len(job) < _LABEL:
        return job
    start = job[: _LABEL - _DIGITS - 1].rstrip("-.")
    return f"{start}-{_digest(job)}"[:_LABEL]


def pod_name(job: str, index: int) -> str:
    """The name of the worker pod with this replica index. It is deterministic, so a stale cache only causes a 409."""
    return f"{_fit(job, '-worker', _SUBDOMAIN - _INDEX)}-{index}"


def host_name(job: str, index: int) -> str:
    """The name by which the pod knows itself, and by which others know it with a Service."""
    return _fit(job, f"-worker-{index}", _LABEL, _HOST)


def service_name(job: str) -> str:
    """The headless Service of the job: `<host name>.<service>.<namespace>` resolves to the pod."""
    return _fit(job, "-workers", _LABEL, _SERVICE)


def disruption_budget_name(job: str) -> str:
    return _fit(job, "-workers", _SUBDOMAIN)


def network_policy_name(job: str) -> str:
    return _fit(job, "-workers", _SUBDOMAIN)


def ca_config_map_name(job: str) -> str:
    """The name of the ConfigMap with `ca.crt`, by which the job's agents verify the hub."""
    return _fit(job, "-elasticjob-ca", _SUBDOMAIN)


def code_config_map_name(job: str, digest: str) -> str:
    """The name of the ConfigMap with the job's code. Its content never changes, so the digest is part of the name."""
    return _fit(job, f"-code-{digest[:10]}", _SUBDOMAIN)


def update_config_map_name(job: str, slot: str) -> str:
    """The name of a ConfigMap with a later revision of the job's code. The kubelets bring each change to the pods."""
    return _fit(job, f"-update-{slot}", _SUBDOMAIN)


def autoscaler_name(job: str) -> str:
    return job


def pod_group_name(job: str) -> str:
    """Some schedulers find a pod's group by a label."""
    return label(job)


def event_name(job: str, digest: str) -> str:
    return _fit(job, f".{digest[:16]}", _SUBDOMAIN)


def is_mark(key: str) -> bool:
    """Whether the operator goes by this label or annotation of its pods."""
    return key == LABEL_APP or key.partition("/")[0] == GROUP


def workload_name(job: str, uid: str, first: int) -> str:
    """Of Kueue. `first`: the lowest replica index that it covers."""
    return f"{_fit(job, f'-{uid[:8]}', _SUBDOMAIN - _INDEX)}-{first}"


def archive_url(to: str, namespace: str, job: str, uid: str) -> str:
    """The folder of a job below what `checkpoints.archive.to` names. Another job of the same name has another one."""
    return f"{to.rstrip('/')}/{namespace}/{job}/{uid}"


def selector(job: str) -> str:
    """The label selector for the scale subresource."""
    return f"{LABEL_JOB}={label(job)}"
