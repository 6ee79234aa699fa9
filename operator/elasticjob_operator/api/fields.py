"""The field names of a spec, and the advice for an unknown field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from elasticjob_operator.api.base import Model
from elasticjob_operator.api.podfields import POD_FIELDS
from elasticjob_operator.api.spec import Spec

Path = tuple[str | int, ...]  # the path of a field below the spec
Fields = Mapping[str, "Fields | None"]  # the fields of an object; None if the operator does not define its content

_ALIKE: Final = 0.75  # what resembles a field less is another one
_CONVERT: Final = "of another kind of job: `kubectl elasticjob convert` knows most of them; else write spec.template"
# Fields that other kinds of jobs have in their specs → what to do here.
FOREIGN: Final = {
    **dict.fromkeys(("parallelism", "completions", "numNodes"), "set spec.replicas"),
    **dict.fromkeys(("minAvailable", "minMember"), "set spec.elasticPolicy.minReplicas"),
    **dict.fromkeys(("backoffLimit", "maxRetry"), "set spec.elasticPolicy.maxRestarts"),
    **dict.fromkeys(("numProcPerNode", "numProcessesPerNode", "nproc"), "set spec.nprocPerNode"),
    "completionMode": "remove it: pods have ranks, and are replaced",
    "restartPolicy": "remove it: the operator replaces pods",
    "cleanPodPolicy": "remove it: pods of a job that has ended stay for their logs, until the job is deleted",
    "podFailurePolicy": "set spec.failurePolicy",
    "queue": "name a queue of Kueue in the label kueue.x-k8s.io/queue-name",
    "schedulingPolicy": "set spec.elasticPolicy.minReplicas, and spec.template.spec.schedulerName",
    **dict.fromkeys(
        ("pytorchReplicaSpecs", "mpiReplicaSpecs", "tfReplicaSpecs", "replicaSpecs", "trainer", "runtimeRef",
         "rayClusterSpec", "entrypoint"), _CONVERT,
    ),
    **dict.fromkeys(("tasks", "replicatedJobs", "plugins", "policies"), "write the pods in spec.template"),
}  # fmt: skip


def spell(root: str, path: Path) -> str:
    """A path as a user would write it: `spec.failurePolicy.rules[0].action`."""
    return root + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def list_fields(model: type[BaseModel]) -> Fields:
    found: dict[str, Fields | None] = {}
    for name, field in model.model_fields.items():
        inner = (field.annotation, *get_args(field.annotation))
        inner = (*inner, *(deep for one in inner for deep in get_args(one)))
        models = [one for one in inner if isinstance(one, type) and issubclass(one, Model)]
        found[field.alias or name] = list_fields(models[0]) if models else None
    return found


FIELDS: Fields = list_fields(Spec)


def find_unknown(raw: Mapping[str, Any], fields: Fields = FIELDS, path: Path = ()) -> list[Path]:
    """The paths of fields that this version does not know. Content that the models do not define is skipped."""
    found: list[Path] = []
    for name, value in raw.items():
        here = (*path, name)
        if name not in fields:
            found.append(here)
        elif (inner := fields[name]) is not None:
            items = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, item in items:
                if isinstance(item, Mapping):
                    found += find_unknown(item, inner, here if index is None else (*here, index))
    return found


def without(raw: Any, paths: Iterable[Path]) -> Any:
    """A copy of the value without these paths. Parts that are not on a path are shared."""
    by_head: dict[str | int, list[Path]] = {}
    for head, *rest in paths:
        by_head.setdefault(head, []).append(tuple(rest))
    if not by_head:
        return raw
    items = enumerate(raw) if isinstance(raw, list) else raw.items()
    kept = {k: without(v, by_head.get(k, ())) for k, v in items if () not in by_head.get(k, ())}
    return list(kept.values()) if isinstance(raw, list) else kept


def advise(path: Path) -> str:
    """Advice for an unknown field: the likely intended field, if there is one."""
    name = str(path[-1])
    fields: Fields | None = FIELDS
    for part in path[:-1]:
        if isinstance(part, str):
            fields = (fields or {}).get(part)
    meant = _find_field(name, FIELDS, ())
    if meant is None and name in FOREIGN:
        return FOREIGN[name]
    if meant is None and len(path) == 1 and (name in POD_FIELDS["pod"] or name in POD_FIELDS["container"]):
        return f"it belongs to spec.template.spec{'' if name in POD_FIELDS['pod'] else '.containers[]'}"
    close = difflib.get_close_matches(name[:64], fields or (), 1, _ALIKE)
    meant = meant or ((*path[:-1], close[0]) if close else None)
    return f"did you mean {spell('spec', meant)}?" if meant else "check the spelling, or remove it"


def _find_field(name: str, fields: Fields, path: Path) -> Path | None:
    if name in fields:
        return (*path, name)
    deeper = (_find_field(name, inner, (*path, part)) for part, inner in fields.items() if inner)
    return next((found for found in deeper if found), None)
