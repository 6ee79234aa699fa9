"""The common parts of all converters: pod template, bounds, restart policies. Pure."""

from __future__ import annotations

import copy
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.convert.draft import ConversionError, Draft, Source

# The operator sets these; values in the template would conflict.
_MEMBERSHIP_ENV: Final = {
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "PET_NNODES", "PET_NODE_RANK", "PET_RDZV_ID",
    "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_MAX_RESTARTS",
    "PET_NPROC_PER_NODE", "RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID",
}  # fmt: skip

PLACEHOLDER_IMAGE: Final = "REPLACE-ME"  # not a valid image, so that an unedited job fails with this name


def take_template(draft: Draft, template: object, path: str, trainer: str) -> dict[str, Any]:
    """The pod template for our job. `trainer` is the container name that the source's operator uses."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise ConversionError(f"{path}: is required: the pod template has spec.containers")
    result = copy.deepcopy(template)
    if not isinstance(result.get("metadata") or {}, dict):
        raise ConversionError(f"{path}.metadata: must be an object, not {result['metadata']!r}")
    spec = result["spec"]
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(c, dict) for c in containers):
        raise ConversionError(f"{path}.spec.containers: is required: give at least one container")
    policy = spec.pop("restartPolicy", None)
    if policy not in (None, "Never"):
        draft.warn(f"{path}.spec.restartPolicy", "was dropped: the operator replaces pods, which restart never")
    named = next((i for i, c in enumerate(containers) if c.get("name") == trainer), 0)
    if named > 0:  # our default is the first container
        metadata = result.setdefault("metadata", {}) or {}
        result["metadata"] = metadata
        metadata["annotations"] = {**(metadata.get("annotations") or {}), names.ANNOTATION_TRAINER: trainer}
    container = containers[named]
    container.setdefault("name", trainer)
    _drop_environment(draft, container, f"{path}.spec.containers[{named}]")
    ports = container.get("ports") or []
    if not isinstance(ports, list) or not all(isinstance(p, dict) for p in ports):
        raise ConversionError(f"{path}.spec.containers[{named}].ports: must be a list of objects, not {ports!r}")
    ports = [p for p in ports if p.get("name") not in ("pytorchjob-port", "elasticjob-port")]
    container.pop("ports", None)
    if ports:
        container["ports"] = ports
    (result.get("metadata") or {}).pop("creationTimestamp", None)
    if not result.get("metadata"):
        result.pop("metadata", None)
    draft.template = result
    return dict(container)


def trainer_of(draft: Draft) -> dict[str, Any]:
    """The draft's trainer container, to be modified."""
    annotations = (draft.template.get("metadata") or {}).get("annotations") or {}
    containers: list[dict[str, Any]] = draft.template["spec"]["containers"]
    wanted = annotations.get(names.ANNOTATION_TRAINER)
    return next((c for c in containers if c["name"] == wanted), containers[0])


def take_bounds(draft: Draft, low: int | None, high: int | None, replicas: int | None, path: str) -> None:
    """Make minReplicas, maxReplicas and replicas consistent: the source's operators clamp, ours rejects.

    If the spec has no bounds, those of the command line, which were taken before, apply.
    """
    low = draft.elastic.get("minReplicas") if low is None else low
    high = draft.elastic.get("maxReplicas") if high is None else high
    if low is not None and high is not None and low > high:
        raise ConversionError(f"{path}: minimum {low} is greater than maximum {high}")
    if replicas is not None and replicas < 1:
        draft.run["suspend"] = True
        draft.warn(path, f"{replicas} replicas: the job is suspended instead, resume it to train")
        replicas = None
    if replicas is not None:
        clamped = max(low or replicas, min(high or replicas, replicas))
        if clamped != replicas:
            draft.warn(path, f"{replicas} replicas are outside {low}..{high}: {clamped} are used")
        replicas = clamped
    draft.elastic |= {"minReplicas": low, "maxReplicas": high}
    draft.spec["replicas"] = replicas if replicas or low or high else 1


def add_restart_rules(draft: Draft, policy: str | None, path: str) -> None:
    """Convert the source's restartPolicy of a replica to failure rules."""
    if policy in (None, "OnFailure", "Always"):
        return  # the same meaning: a failed worker restarts within the budget
    if policy == "Never":
        draft.elastic["maxRestarts"] = 0
        draft.warn(
            path, "Never became elasticPolicy.maxRestarts 0: a worker that fails ends the job, a lost pod does not"
        )
    elif policy == "ExitCode":
        draft.rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(range(1, 128))}})
        draft.warn(path, "ExitCode became a rule: codes 1 to 127 fail the job, 128 and above restart within the budget")
    else:
        draft.warn(path, f"{policy!r} has no counterpart: a failed worker restarts within elasticPolicy.maxRestarts")


def take_run_policy(draft: Draft, run: Source) -> None:
    """Kubeflow's RunPolicy, which PyTorchJob and MPIJob share. The template has been taken before."""
    draft.run["cleanPodPolicy"] = run.take("cleanPodPolicy")
    draft.run["ttlSecondsAfterFinished"] = run.take_number("ttlSecondsAfterFinished")
    draft.run["activeDeadlineSeconds"] = run.take_number("activeDeadlineSeconds")
    if run.take("suspend"):
        draft.run["suspend"] = True
    limit = run.take_number("backoffLimit")
    if limit is not None and draft.elastic.get("maxRestarts") is not None:
        restarts = draft.elastic["maxRestarts"]
        run.warn("backoffLimit", f"{limit} was dropped: elasticPolicy.maxRestarts, which is {restarts}, counts")
    elif limit is not None:
        draft.elastic["maxRestarts"] = limit
        draft.elastic["restartWindowSeconds"] = 0  # PyTorchJob counts over the job's whole lifetime
    scheduling = run.part("schedulingPolicy")
    priority, queue = scheduling.take("priorityClass"), scheduling.take("queue")
    if priority:
        draft.template["spec"].setdefault("priorityClassName", priority)
    if queue:
        set_queue(draft, str(queue))
        scheduling.warn("queue", f"became the label {names.LABEL_QUEUE}: check that Kueue has it")
    for key in sorted(scheduling.values):
        scheduling.warn(key, "has no counterpart: the gang is elasticPolicy.minReplicas")
    by = run.take("managedBy")
    if by and by not in ("kubeflow.org/training-operator", "kubeflow.org/mpi-operator"):
        draft.spec["managedBy"] = by
    run.finish()


def set_queue(draft: Draft, queue: str) -> None:
    """Kueue's label, unless the document has it."""
    metadata = draft.document.get("metadata")
    if isinstance(metadata, dict):
        labels = metadata.get("labels")
        metadata["labels"] = {names.LABEL_QUEUE: queue, **(labels if isinstance(labels, dict) else {})}


def _has_name(variable: dict[str, Any]) -> bool:
    return isinstance(variable.get("name"), str)


def _drop_environment(draft: Draft, container: dict[str, Any], path: str) -> None:
    variables = container.get("env") or []
    if not isinstance(variables, list) or not all(isinstance(v, dict) and _has_name(v) for v in variables):
        raise ConversionError(f"{path}.env: must be a list of objects with name and value, not {variables!r}")
    for variable in variables:
        if variable.get("name") in _MEMBERSHIP_ENV:
            draft.warn(f"{path}.env[{variable['name']}]", "was dropped: the operator sets it for every generation")
    kept = [v for v in variables if v.get("name") not in _MEMBERSHIP_ENV]
    container.pop("env", None)
    if kept:
        container["env"] = kept
