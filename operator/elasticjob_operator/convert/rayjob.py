"""KubeRay's RayJob (`ray.io/v1`). Every worker pod runs the entrypoint, which Ray ran once, in its head.

The pods come from the first group of workers, or from the head if there is none. A script that calls Ray must be
changed: a warning says so, since the document does not show it.
"""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator.client.documents import DocumentError, load_documents
from elasticjob_operator.convert import commands, launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source

_OWN: Final = "ray.io/kuberay-operator"


def fill(draft: Draft) -> None:
    source = draft.source
    entrypoint = source.take_text("entrypoint")
    if not entrypoint:
        raise ConversionError("spec.entrypoint: is required: the command that starts the training")
    cluster = source.part("rayClusterSpec")
    if not cluster.values:
        raise ConversionError("spec.rayClusterSpec: is required: a clusterSelector has no pod template to convert")
    group = _choose_group(cluster)
    _take_runtime(draft, source)
    template = group.take("template")
    words = _read_entrypoint(draft, entrypoint)
    container = _trainer(template)
    commands.set_command(draft, container, words)
    pods.take_template(draft, template, f"{group.path}.template", str(container.get("name") or "ray-worker"))
    launcher.take_arguments(draft, "spec.entrypoint")
    _fill_sizes(draft, group)
    group.finish()
    cluster.take("rayVersion")
    cluster.drop({"autoscalerOptions": "was dropped: use a HorizontalPodAutoscaler on the ElasticJob"})
    cluster.take("enableInTreeAutoscaling")
    cluster.finish()
    _fill_job(draft, source)


def _read_entrypoint(draft: Draft, entrypoint: str) -> list[str]:
    words = commands.split_line(entrypoint)
    if words is None:
        raise ConversionError(
            "spec.entrypoint: has more than one shell command: leave only the one that starts the training, "
            "and do the rest in the image or in the script"
        )
    result = commands.to_torchrun(draft, words, "spec.entrypoint")
    draft.warn("spec.entrypoint", "is run by every worker: replace what the script calls of Ray by torch.distributed")
    return result


def _choose_group(cluster: Source) -> Source:
    groups = cluster.take_parts("workerGroupSpecs")
    head = cluster.part("headGroupSpec")
    if not groups:
        if not head.values:
            raise ConversionError(f"{cluster.path}.workerGroupSpecs: is required: give a group of workers")
        cluster.warn("headGroupSpec", "its pod is the only worker: there is no head")
        return head
    if head.values:
        cluster.warn("headGroupSpec", "was dropped: an ElasticJob has no head; any pod can be rank 0")
    for group in groups[1:]:
        name = group.values.get("groupName") or "a group"
        draft_field = group.path.removeprefix(f"{cluster.path}.")
        cluster.warn(draft_field, f"{name} was dropped: an ElasticJob has one kind of pod. Make it a job of its own")
    return groups[0]


def _trainer(template: object) -> dict[str, Any]:
    """Ray's container is the first one of the pod. A wrong template is reported when it is taken."""
    spec = template.get("spec") if isinstance(template, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    first = containers[0] if isinstance(containers, list) and containers else None
    return first if isinstance(first, dict) else {}


def _fill_sizes(draft: Draft, group: Source) -> None:
    hosts = group.take_number("numOfHosts") or 1
    numbers = {key: group.take_number(key) for key in ("replicas", "minReplicas", "maxReplicas")}
    low, high, replicas = (
        None if (value := numbers[key]) is None else value * hosts for key in ("minReplicas", "maxReplicas", "replicas")
    )
    if low == 0:
        group.warn("minReplicas", "0 was dropped: an ElasticJob trains with one pod at least")
        low = None
    pods.take_bounds(draft, low, high, 1 if replicas is None else replicas, f"{group.path}.replicas")
    group.take("groupName")
    group.drop(
        {
            "rayStartParams": "was dropped: no Ray is started; set devices in the container's resources",
            "idleTimeoutSeconds": "was dropped: pods leave only by a change of replicas",
        }
    )
    for key in ("serviceType", "enableIngress", "headService"):
        group.drop({key: "was dropped: there is no head"})


def _take_runtime(draft: Draft, source: Source) -> None:
    text = source.take_text("runtimeEnvYAML")
    try:
        documents = load_documents(text)
    except DocumentError as error:
        raise ConversionError(f"spec.runtimeEnvYAML: {error}") from None
    if len(documents) > 1:
        raise ConversionError(f"spec.runtimeEnvYAML: must be one document, not {len(documents)}")
    runtime = Source(documents[0] if documents else {}, "spec.runtimeEnvYAML", draft)
    for name, value in runtime.part("env_vars").values.items():
        commands.add_variable(draft, str(name), str(value))
    runtime.drop(
        {
            "pip": "was dropped: install the packages in the image",
            "uv": "was dropped: install the packages in the image",
            "conda": "was dropped: install the packages in the image",
            "working_dir": "was dropped: put the files into the image, or mount them as a volume",
            "py_modules": "was dropped: install the modules in the image",
        }
    )
    runtime.finish()


def _fill_job(draft: Draft, source: Source) -> None:
    draft.run["activeDeadlineSeconds"] = source.take_number("activeDeadlineSeconds")
    ends, seconds = source.take("shutdownAfterJobFinishes"), source.take_number("ttlSecondsAfterFinished")
    if seconds is not None and ends:
        source.warn("ttlSecondsAfterFinished", "deletes the job itself here, not only its pods")
        draft.run["ttlSecondsAfterFinished"] = seconds
    elif seconds is not None:
        source.warn("ttlSecondsAfterFinished", "was dropped: it has no effect without shutdownAfterJobFinishes")
    limit = source.take_number("backoffLimit")
    if limit is not None:
        draft.elastic.setdefault("maxRestarts", limit)
        source.warn(
            "backoffLimit", "counted whole runs: maxRestarts counts failures of workers, and lost pods are free"
        )
    if source.take("suspend"):
        draft.run["suspend"] = True
    by = source.take("managedBy")
    if by and by != _OWN:
        draft.spec["managedBy"] = by
    for key in ("submissionMode", "submitterPodTemplate", "submitterConfig"):
        source.drop({key: "was dropped: there is no submitter; the pods run the entrypoint"})
    for key in ("entrypointNumCpus", "entrypointNumGpus", "entrypointResources"):
        source.drop({key: "was dropped: the resources are those of the pod"})
    source.drop({"deletionStrategy": "was dropped: see runPolicy.cleanPodPolicy and ttlSecondsAfterFinished"})
    source.finish()
