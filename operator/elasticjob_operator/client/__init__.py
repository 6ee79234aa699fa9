"""The Python client: submit a job, wait for it, read its logs, change its size.

    from elasticjob_operator.client import SyncClient

    with SyncClient(namespace="team-a") as client:
        client.submit(manifest)
        client.wait("digits", "Complete", timeout=3600)

`Client` is the asynchronous version. Both take a kubeconfig, a context and a namespace like kubectl. Every error is a
`ClientError` whose message names the remedy; errors of the transport are never exposed.
"""

from elasticjob_operator.client.errors import (
    AlreadyExistsError,
    ClientError,
    ConfigError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    JobFailedError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
    WaitTimeoutError,
)
from elasticjob_operator.client.jobs import Client
from elasticjob_operator.client.logs import Line
from elasticjob_operator.client.model import Change, Happening, Job, Pod, build_manifest
from elasticjob_operator.client.sync import SyncClient

__all__ = [
    "AlreadyExistsError",
    "Change",
    "Client",
    "ClientError",
    "ConfigError",
    "ConflictError",
    "ForbiddenError",
    "Happening",
    "InvalidError",
    "Job",
    "JobFailedError",
    "Line",
    "NotFoundError",
    "Pod",
    "SyncClient",
    "UnauthorizedError",
    "UnreachableError",
    "WaitTimeoutError",
    "build_manifest",
]
