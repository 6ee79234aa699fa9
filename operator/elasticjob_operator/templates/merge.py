"""Puts the spec of a template and that of a job together: what the job says has precedence. Pure.

Objects merge field by field. Lists whose entries have a name merge entry by entry, as in a strategic merge patch of
Kubernetes; of these, only containers merge further. Every other value is taken whole, from the job if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from elasticjob_operator import text
from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import INSTALLER_FIELDS
from elasticjob_operator.untyped import as_object

Object = Mapping[str, Any]

# Lists whose entries have a name, and the field that it is in.
_NAMED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("containers", "initContainers", "env", "volumes", "imagePullSecrets", "resourceClaims"), "name"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
_LONGEST_PATH: Final = 256  # characters: with long names, the paths would be many times as long as the specs
_MERGED_FURTHER: Final = ("containers", "initContainers")
# Objects that are one decision: half of each would be neither.
_WHOLE: Final = ("rendezvous", "affinity", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


@dataclass(frozen=True)
class Merged:
    """A spec, and the paths of those of its fields that come from the template."""

    spec: dict[str, Any]
    fields: tuple[str, ...]


def merge(template: Object, job: Object) -> Merged:
    """The spec of a job with that of its template. Neither is changed; the result may share parts with both."""
    trainer = _find_trainer(job)
    found: list[str] = []
    spec = _merge_objects(*_align_trainers(template, job), "", found)
    if trainer is not None and _named_trainer(spec) != trainer:
        spec = _annotate(spec, trainer)
    return Merged(spec, tuple(found))


def _merge_objects(base: Object, over: Object, path: str, found: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in (*base, *(name for name in over if name not in base)):
        here = text.cut(f"{path}.{name}" if path else name, _LONGEST_PATH)
        theirs, ours = base.get(name), over.get(name)
        if ours is None:
            result[name] = theirs
            if theirs is not None:
                found.append(here)
        elif isinstance(theirs, Mapping) and isinstance(ours, Mapping) and name not in _WHOLE:
            result[name] = _merge_objects(theirs, ours, here, found)
        elif name in _NAMED and _is_named(theirs, _NAMED[name]) and _is_named(ours, _NAMED[name]):
            result[name] = _merge_lists(theirs, ours, name, here, found)
        else:
            result[name] = ours
    return result


def _merge_lists(base: list[Object], over: list[Object], name: str, path: str, found: list[str]) -> list[Object]:
    key = _NAMED[name]
    ours = {entry[key]: entry for entry in over}
    result: list[Object] = []
    for entry in base:
        here = text.cut(f"{path}[{entry[key]}]", _LONGEST_PATH)
        mine = ours.pop(entry[key], None)
        if mine is None:
            found.append(here)
            result.append(entry)
        else:
            result.append(_merge_objects(entry, mine, here, found) if name in _MERGED_FURTHER else mine)
    return [*result, *ours.values()]


def _is_named(value: Any, key: str) -> TypeGuard[list[Object]]:
    """Whether this is a list of objects that can be told apart by this field."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        return False
    known = [entry.get(key) for entry in value]
    return all(isinstance(name, str | int) for name in known) and len(set(known)) == len(known)


# --- the container that trains ------------------------------------------------------------------------------


def _align_trainers(template: Object, job: Object) -> tuple[Object, Object]:
    """Both specs with one name, the job's, for the container that trains, however the template calls it."""
    theirs, ours = _find_trainer(template), _find_trainer(job)
    if theirs is None or ours is None:
        return template, job
    job = _fill_installer(template, theirs, job)
    if ours in _container_names(template):
        return template, job
    renamed = [c | {"name": ours} if c["name"] == theirs else c for c in _containers(template, "containers")]
    return _with_pod(template, {"containers": renamed}), job


def _fill_installer(template: Object, trainer: str, job: Object) -> Object:
    """What `submit` sends with requirements installs them in the environment of the trainer, the template's too."""
    installers = _containers(job, "initContainers")
    if all(c.get("name") != names.VOLUME_PACKAGES for c in installers):
        return job
    base = next(c for c in _containers(template, "containers") if c["name"] == trainer)
    known = {field: base[field] for field in INSTALLER_FIELDS if field in base}
    filled = [_merge_objects(known, c, "", []) if c.get("name") == names.VOLUME_PACKAGES else c for c in installers]
    return _with_pod(job, {"initContainers": filled})


def _annotate(spec: Object, trainer: str) -> dict[str, Any]:
    """The spec in which this container trains."""
    pod = spec["template"]
    metadata = as_object(pod.get("metadata"))
    annotations = {**as_object(metadata.get("annotations")), names.ANNOTATION_TRAINER: trainer}
    return {**spec, "template": {**pod, "metadata": {**metadata, "annotations": annotations}}}


def _with_pod(spec: Object, fields: Object) -> Object:
    pod = spec["template"]
    return {**spec, "template": {**pod, "spec": {**pod["spec"], **fields}}}


def _find_trainer(spec: Object) -> str | None:
    """The name of the container that trains; None if no container has a name."""
    known, named = _container_names(spec), _named_trainer(spec)
    return named if named in known else next(iter(known), None)


def _named_trainer(spec: Object) -> Any:
    """What the annotation says, else the first container."""
    metadata = as_object(as_object(spec.get("template")).get("metadata"))
    named = as_object(metadata.get("annotations")).get(names.ANNOTATION_TRAINER)
    return named or next(iter(_container_names(spec)), None)


def _container_names(spec: Object) -> list[str]:
    return [c["name"] for c in _containers(spec, "containers")]


def _containers(spec: Object, kind: str) -> list[dict[str, Any]]:
    """The containers of a spec; none if they are not what a pod template has."""
    found = as_object(as_object(spec.get("template")).get("spec")).get(kind)
    return [dict(c) for c in found] if _is_named(found, "name") else []
