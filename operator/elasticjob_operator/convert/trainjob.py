"""Kubeflow Trainer's TrainJob (`trainer.kubeflow.org/v1alpha1`).

Half of such a job is in its runtime, which is a separate object: a warning requests what the document does not contain.
"""

from __future__ import annotations

from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.convert import launcher, pods
from elasticjob_operator.convert.draft import Draft, Source

_OWN: Final = "trainer.kubeflow.org/trainjob-controller"


def fill(draft: Draft) -> None:
    source = draft.source
    runtime = source.part("runtimeRef").values
    trainer = source.part("trainer")
    container = _container(draft, trainer, str(runtime.get("name") or ""))
    draft.template = {"spec": {"containers": [container]}}
    _fill_sizes(draft, trainer)
    trainer.finish()
    if runtime:
        source.warn(
            "runtimeRef",
            f"the runtime {runtime.get('name')} was not read: carry over what it adds (image, command, volumes, "
            "failure policy) by hand",
        )
    for key, meaning in (("labels", "labels"), ("annotations", "annotations")):
        values = source.part(key).values
        if values:
            draft.template.setdefault("metadata", {})[meaning] = values
    if source.take("suspend"):
        draft.run["suspend"] = True
    by = source.take("managedBy")
    if by and by != _OWN:
        draft.spec["managedBy"] = by
    draft.run["activeDeadlineSeconds"] = source.take_number("activeDeadlineSeconds")
    _fill_overrides(draft, source)
    _warn_initializer(source)
    source.finish()


def _container(draft: Draft, trainer: Source, runtime: str) -> dict[str, Any]:
    image = trainer.take("image")
    if not image:
        trainer.warn("image", f"comes from the runtime {runtime}: put the image instead of {pods.PLACEHOLDER_IMAGE}")
    resources = trainer.take("resourcesPerNode")
    container = {
        "name": "node",
        "image": image or pods.PLACEHOLDER_IMAGE,
        "command": trainer.take("command"),
        "args": trainer.take("args"),
        "env": trainer.take("env"),
        "resources": resources,
    }
    if not container["command"]:
        trainer.warn("command", f"comes from the runtime {runtime}: add the command (for example torchrun train.py)")
    return {key: value for key, value in container.items() if value}


def _fill_sizes(draft: Draft, trainer: Source) -> None:
    nodes = trainer.take_number("numNodes")
    if nodes is None:
        trainer.warn("numNodes", "comes from the runtime: 1 is used")
    nproc = trainer.take("numProcPerNode")
    if nproc is not None:
        draft.spec["nprocPerNode"] = nproc if (number := numerals.read_count(nproc)) is None else number
    pods.take_template(draft, draft.template, "spec.trainer", "node")
    launcher.take_arguments(draft, "spec.trainer")
    pods.take_bounds(draft, None, None, 1 if nodes is None else nodes, "spec.trainer.numNodes")
    if (nodes or 1) > 1 and not draft.elastic.get("minReplicas"):
        trainer.warn(
            "numNodes", f"a TrainJob is not elastic: to make it so, set elasticPolicy.minReplicas below {nodes}"
        )


def _warn_initializer(source: Source) -> None:
    initializer = source.part("initializer").values
    for kind in ("dataset", "model"):
        if initializer.get(kind):
            source.warn(
                f"initializer.{kind}", "has no counterpart: load it in an init container of the template, into a volume"
            )


def _fill_overrides(draft: Draft, source: Source) -> None:
    """Merge the podTemplateOverrides that affect the trainer's pods; the others have no pods here."""
    for key in ("podTemplateOverrides", "podSpecOverrides"):
        for i, part in enumerate(source.take_parts(key)):
            path = f"{key}[{i}]"
            targets = [target.values.get("name") for target in part.take_parts("targetJobs")]
            if targets and "node" not in targets:
                source.warn(path, f"reaches only {', '.join(map(str, targets))}, which has no counterpart")
                continue
            _merge_spec(draft, source, path, part.part("spec") if key == "podTemplateOverrides" else part)
            metadata = part.part("metadata")
            for kind in ("labels", "annotations"):
                values = metadata.part(kind).values
                if values:
                    draft.template.setdefault("metadata", {}).setdefault(kind, {}).update(values)
    for i, _ in enumerate(source.take_parts("runtimePatches")):
        source.warn(f"runtimePatches[{i}]", "has no counterpart: change the template instead")


def _merge_spec(draft: Draft, source: Source, path: str, spec: Source) -> None:
    container = pods.trainer_of(draft)
    for override in spec.take_parts("containers"):
        name = override.values.get("name")
        if name not in ("node", "trainer"):
            source.warn(f"{path}.spec.containers", f"{name} comes from the runtime: add it by hand")
            continue
        for key in ("env", "volumeMounts"):
            entries = [entry.values for entry in override.take_parts(key)]
            if entries:
                container[key] = [*container.get(key, []), *entries]
    for key, value in spec.values.items():
        if key == "metadata":  # of an override without a spec of its own
            continue
        if key == "initContainers":
            source.warn(f"{path}.spec.initContainers", "come from the runtime: add them by hand")
        else:
            draft.template["spec"][key] = value
