"""What all objects of a job have in common: owner reference, labels and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.model.observe import Job
from elasticjob_operator.pool.capacity import Pool

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the operator that pods need."""

    hub_url: str
    tls: bool = False
    runtime_image: str = ""  # image with the injectable runtime
    is_runtime_volume: bool = False  # it is mounted, and not copied by an init container
    worker_image: str = ""  # the project's worker image, with the runtime built in
    image_pull_policy: str = "IfNotPresent"
    token_seconds: int = 3600
    operator_namespace: str = ""
    hub_port: int = 0
    pools: tuple[Pool, ...] = ()
    release: str = ""  # of this operator; "" if it knows no others
    is_traced: bool = False  # workers are told the span that theirs belong to


def owner_reference(job: Job) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(job: Job, name: str, annotations: Mapping[str, str] | None = None) -> Object:
    made: Object = {
        "name": name,
        "namespace": job.namespace,
        "labels": {
            names.LABEL_JOB: names.label(job.name),
            names.LABEL_JOB_UID: job.uid,
            names.LABEL_APP: names.LABEL_APP_VALUE,
        },
        "ownerReferences": [owner_reference(job)],
    }
    if annotations:
        made["annotations"] = dict(annotations)
    return made
