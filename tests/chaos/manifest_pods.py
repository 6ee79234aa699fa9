"""Compares the pods of a job that trains with what its template asks for. Pure.

What a template asks for is what the API server makes of a pod with it, in the same namespace: with its defaults,
without the fields that it does not know, and with whatever others do to pods there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import trainer_container

Raw = Mapping[str, Any]
Object = dict[str, Any]

NAME: Final = "by-hand"  # of the pod that only the template has made
# By which items of a list are told from each other; others have a name.
_KEYS: Final = {"volumeMounts": "mountPath", "volumeDevices": "devicePath", "ports": "containerPort"}
# What pods of a job have where their template has nothing ...
_DEFAULTS: Final = {"automountServiceAccountToken": False, "enableServiceLinks": False}
_GRACE: Final = "terminationGracePeriodSeconds"  # ... and another of these
_TOKENS: Final = ("kube-api-access-", "default-token-")  # volumes that the API server adds: each has a name of its own
_OF_LIMITS: Final = "kubernetes.io/limit-ranger"  # annotation: which containers got a limit that their template lacks
_RUNTIME: Final = "PYTHONPATH"  # the operator adds its own folder to it


def build_by_hand(template: Raw) -> Object:
    """A pod of this template alone, to be made in a dry run."""
    metadata = template.get("metadata") or {}
    # Charts leave fields empty, which is as if they were not there.
    spec = {key: value for key, value in template["spec"].items() if value not in ("", None)}
    trainer = trainer_container(template)
    containers = [
        {**one, "terminationMessagePolicy": one.get("terminationMessagePolicy") or "FallbackToLogsOnError"}
        if one["name"] == trainer
        else one
        for one in spec["containers"]
    ]
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    body = {**_DEFAULTS, **spec, "containers": containers, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, **kept}, "spec": body}


def find_lost(template: Raw, by_hand: Raw, pod: Raw) -> Iterator[str]:
    """What a pod has not as its template asks for it. `by_hand`: what the API server made of `build_by_hand`."""
    theirs = template["spec"]
    spec = {key: value for key, value in by_hand["spec"].items() if key != _GRACE or theirs.get(key) not in ("", None)}
    added = {str(v["name"]) for v in spec.get("volumes") or () if v["name"].startswith(_TOKENS)}
    added -= {str(v.get("name")) for v in theirs.get("volumes") or ()}
    spec = _leave_out(spec, added)
    yield from _compare(spec, pod["spec"], "spec")
    for kind in ("labels", "annotations"):
        said = by_hand["metadata"].get(kind) or {}
        wanted = {key: value for key, value in said.items() if not names.is_mark(key) and key != _OF_LIMITS}
        yield from _compare(wanted, pod["metadata"].get(kind) or {}, f"metadata.{kind}")


def _leave_out(spec: Object, volumes: set[str]) -> Object:
    """The spec without these volumes and their mounts."""

    def keep(items: Any) -> list[Any]:
        return [one for one in items or () if one["name"] not in volumes]

    containers = {
        kind: [{**one, "volumeMounts": keep(one.get("volumeMounts"))} for one in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    return {**spec, **containers, "volumes": keep(spec.get("volumes"))}


def list_live(pods: Sequence[Raw]) -> list[Raw]:
    ended = ("Succeeded", "Failed")
    return [p for p in pods if not p["metadata"].get("deletionTimestamp") and p["status"].get("phase") not in ended]


def find_down(pod: Raw) -> Iterator[str]:
    """The containers of a pod that do not run and should."""
    sidecars = {c["name"] for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") == "Always"}
    status = pod["status"]
    entries = [c for c in status.get("initContainerStatuses") or () if c["name"] in sidecars]
    for container in (*entries, *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if (state.get("terminated") or {}).get("exitCode") or (state.get("waiting") or {}).get("reason"):
            yield str(container["name"])


def _compare(wanted: Any, found: Any, where: str) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, one in wanted.items():
            yield from _compare(one, found.get(key), f"{where}.{key}")
    elif isinstance(wanted, list) and (isinstance(found, list) or not wanted):
        yield from _compare_lists(wanted, found or [], where)
    elif wanted != found and not _is_extended(wanted, found, where):
        yield f"{where}: {_show(wanted)} became {_show(found)}"


def _compare_lists(wanted: list[Any], found: list[Any], where: str) -> Iterator[str]:
    """All items are there in their order; others may be between them."""
    at = 0
    for number, one in enumerate(wanted):
        place = f"{where}[{_name(one, where, number)}]"
        same = next((i for i in range(at, len(found)) if not any(_compare(one, found[i], place))), None)
        if same is not None:
            at = same + 1
            continue
        if any(not any(_compare(one, other, place)) for other in found[:at]):
            yield f"{place}: it is in another order"
            continue
        named = [other for other in found if _name(other, where, -1) == _name(one, where, number)]
        yield from _compare(one, named[0], place) if named else iter([f"{place}: it is not there"])


def _name(one: Any, where: str, number: int) -> str:
    field = where.rpartition(".")[2]
    value = one.get(_KEYS.get(field, "name")) if isinstance(one, Mapping) else one
    return str(number if value is None else value)


def _is_extended(wanted: Any, found: Any, where: str) -> bool:
    is_path = where.endswith(f".env[{_RUNTIME}].value")
    return is_path and isinstance(found, str) and found.startswith(f"{wanted}:")


def _show(value: Any) -> str:
    return "nothing" if value is None else str(value)[:80]
