"""The checks of a pod template that only the operator can make; the API server validates the rest. Pure.

A template is never modified. Null fields are dropped in new, shallow copies.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple

from elasticjob_operator import numerals, quantity
from elasticjob_operator.api import names

# The types of the template fields that the operator reads or extends.
_QUOTE = "quote numbers, true and false"
_EMPTY = "is empty: write its value, or leave it out"  # as charts render what is not set
_OBJECTS, _TEXTS = "a list of objects", f"a list of texts: {_QUOTE}"
_POD_SHAPES = {"schedulerName": "a text", "affinity": "an object", "nodeSelector": "an object"}
_POD_SHAPES |= dict.fromkeys(("resources", "overhead"), "an object")
_POD_SHAPES |= dict.fromkeys(("volumes", "initContainers", "tolerations", "topologySpreadConstraints"), _OBJECTS)
_CONTAINER_SHAPES = {"resources": "an object", "lifecycle": "an object", "image": "a text"}
_CONTAINER_SHAPES |= dict.fromkeys(("env", "envFrom", "volumeMounts", "ports"), _OBJECTS)
_CONTAINER_SHAPES |= dict.fromkeys(("command", "args"), _TEXTS)
_ENTRY_TEXTS = ("name", "mountPath")  # of an object in a list
_OS_LABEL: Final = "kubernetes.io/os"
_RESOURCE_SHAPES = {"limits": "an object", "requests": "an object"}

# The rules of a node affinity.
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
KINDS: Final = ("containers", "initContainers")
MOST_CONTAINERS: Final = 256  # of either kind; no node runs as many for one pod
LONGEST_NAME: Final = 63  # characters of the name of a container, which is told together with much of what is in it
MOST_RESOURCES: Final = 256  # of a container; no node has as many
MOST_AMOUNTS: Final = 1024  # requests and limits of a pod
MOST_SIZES: Final = 64  # of a template whose pods are resized in place; of a pod, twice as many are kept
MOST_TERMS: Final = 64  # of a node affinity; each has to name all the faulty nodes that a job excludes


def _check_containers(containers: Any) -> list[dict[str, Any]]:
    if not containers:
        raise ValueError("spec.containers is empty: add at least one container; the first one trains")
    if not isinstance(containers, list):
        raise ValueError("spec.containers must be a list: write `- name: …` for each container")  # noqa: TRY004
    for i, container in enumerate(containers):
        if not isinstance(container, dict):
            raise ValueError(  # noqa: TRY004 - for pydantic
                f"spec.containers[{i}] must be a container: `- name: …` with its fields, or no item at all"
            )
        if not container.get("name") or not isinstance(container["name"], str):
            raise ValueError(f"spec.containers[{i}].name is missing: every container needs a name")
    return containers


def check_template(template: dict[str, Any]) -> dict[str, Any]:
    """The template without null fields. Raises ValueError naming a field of the wrong type."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        raise ValueError("spec is missing: set a pod template with spec.containers")  # noqa: TRY004 - for pydantic
    containers = _check_containers(spec.get("containers"))
    spec = _shaped(spec, _POD_SHAPES, "spec")
    if "resources" in spec:  # of the pod as a whole
        spec["resources"] = _resources(spec["resources"], "spec.resources")
    _check_amounts(spec.get("overhead") or {}, "spec.overhead")
    if "affinity" in spec:
        spec["affinity"] = _affinity(spec["affinity"])
    _check_number_of_containers(spec)
    _check_names(spec)
    for kind in KINDS:
        if kind in spec:
            spec[kind] = [_container(c, f"spec.{kind}[{i}]") for i, c in enumerate(spec[kind])]
    _check_number_of_amounts(spec)
    _check_restarts(spec, "spec")
    for kind in KINDS:
        for i, container in enumerate(spec.get(kind) or ()):
            _check_restarts_of_all(container, f"spec.{kind}[{i}]")
    _check_texts(spec.get("nodeSelector") or {}, "spec.nodeSelector[{}]")
    _check_system(spec)
    _check_metadata(template, [c["name"] for c in containers])
    trainer = trainer_container(template)
    for i, container in enumerate(spec["containers"]):
        if container["name"] == trainer:  # others may serve it for as long as they like
            _check_restarts(container, f"spec.containers[{i}]")
            if container.get("restartPolicyRules"):
                raise ValueError(
                    f"spec.containers[{i}].restartPolicyRules must be left out: the operator replaces pods, and "
                    "decides by exit code where spec.failurePolicy.rules have onExitCodes"
                )
    return {**template, "spec": spec}


def _affinity(affinity: dict[str, Any]) -> dict[str, Any]:
    """New pods avoid faulty nodes beside what it says."""
    path = "spec.affinity.nodeAffinity"
    shaped = _shaped(affinity, {"nodeAffinity": "an object"}, "spec.affinity")
    if "nodeAffinity" not in shaped:
        return shaped
    node = shaped["nodeAffinity"] = _shaped(shaped["nodeAffinity"], {REQUIRED: "an object", PREFERRED: _OBJECTS}, path)
    if REQUIRED in node:
        node[REQUIRED] = _shaped(node[REQUIRED], {"nodeSelectorTerms": _OBJECTS}, f"{path}.{REQUIRED}")
        terms = node[REQUIRED].get("nodeSelectorTerms", ())
        if len(terms) > MOST_TERMS:
            told = f"has {len(terms)} entries; the limit is {MOST_TERMS}: join them, with several values in one"
            raise ValueError(f"{path}.{REQUIRED}.nodeSelectorTerms {told}")
        for i, term in enumerate(terms):
            if not isinstance(term.get("matchExpressions") or [], list):
                where = f"{path}.{REQUIRED}.nodeSelectorTerms[{i}].matchExpressions"
                raise ValueError(f"{where} must be {_OBJECTS}")  # noqa: TRY004 - for pydantic
    return shaped


def _check_number_of_containers(spec: Mapping[str, Any]) -> None:
    """Whoever compares sizes, or asks for quota, looks at each container of each pod."""
    for kind in KINDS:
        if len(found := spec.get(kind) or ()) > MOST_CONTAINERS:
            raise ValueError(
                f"spec.{kind} has {len(found)} entries; the limit is {MOST_CONTAINERS}: leave out the others"
            )


def _check_names(spec: Mapping[str, Any]) -> None:
    for kind in KINDS:
        for i, container in enumerate(spec.get(kind) or ()):
            if len(name := container.get("name") or "") > LONGEST_NAME:
                told = f"has {len(name)} characters; the limit is {LONGEST_NAME}: shorten it"
                raise ValueError(f"spec.{kind}[{i}].name {told}")


def _check_number_of_amounts(spec: Mapping[str, Any]) -> None:
    resources = [c.get("resources") or {} for kind in KINDS for c in spec.get(kind) or ()]
    amounts = sum(len(one.get(kind) or ()) for one in resources for kind in _RESOURCE_SHAPES)
    if amounts > MOST_AMOUNTS:
        told = f"its containers name {amounts} amounts of resources; the limit is {MOST_AMOUNTS}: leave out the others"
        raise ValueError(told)


def _check_restarts(where: Mapping[str, Any], path: str) -> None:
    """A trainer that the kubelet restarts would begin again after its end, too."""
    policy = where.get("restartPolicy") or "Never"
    if policy != "Never":
        raise ValueError(f"{path}.restartPolicy must be Never or left out, not {policy}: the operator replaces pods")


def _check_restarts_of_all(container: Mapping[str, Any], path: str) -> None:
    """Without a word to the operator, the kubelet would restart the trainer for an end of another container."""
    rules = container.get("restartPolicyRules")
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, Mapping) and rule.get("action") == "RestartAllContainers":
            raise ValueError(
                f"{path}.restartPolicyRules restarts all containers, the trainer too: remove the action "
                "RestartAllContainers"
            )


def _check_texts(values: Mapping[Any, Any], field: str, allowed: type | UnionType = str | None) -> None:
    """YAML reads `3` and `true` as something else, and the API server does not say where that is."""
    wrong = [name for name, value in values.items() if not isinstance(value, allowed)]
    if wrong:
        told = _EMPTY if values[wrong[0]] is None else f"must be a text: {_QUOTE}"
        raise ValueError(f"{field.format(str(wrong[0])[:253])} {told}")


def _check_system(spec: Mapping[str, Any]) -> None:
    """No agent runs on Windows: its pods would wait for one."""
    system, labels = spec.get("os"), spec.get("nodeSelector") or {}
    asked = {
        "spec.os.name": system.get("name") if isinstance(system, Mapping) else None,
        f"spec.nodeSelector[{_OS_LABEL}]": labels.get(_OS_LABEL),
    }
    for field, name in asked.items():
        if name == "windows":
            raise ValueError(f"{field} is windows, and workers run on Linux only: remove it")


def _container(container: dict[str, Any], path: str) -> dict[str, Any]:
    shaped = _shaped(container, _CONTAINER_SHAPES, path)
    _check_texts({v.get("name"): v.get("value") for v in shaped.get("env") or ()}, f"{path}.env[{{}}].value")
    if "resources" in shaped:
        shaped["resources"] = _resources(shaped["resources"], f"{path}.resources")
    return shaped


def _resources(resources: dict[str, Any], path: str) -> dict[str, Any]:
    shaped = _shaped(resources, _RESOURCE_SHAPES, path)
    for kind in _RESOURCE_SHAPES:
        _check_amounts(shaped.get(kind) or {}, f"{path}.{kind}")
    return shaped


def _check_amounts(amounts: Mapping[str, Any], path: str) -> None:
    """Whoever counts devices, compares sizes or adds up a gang meets only amounts that can be computed with."""
    if len(amounts) > MOST_RESOURCES:
        raise ValueError(f"{path} names {len(amounts)} resources; the limit is {MOST_RESOURCES}: leave out the others")
    for resource, amount in amounts.items():
        if amount is None:
            raise ValueError(f"{path}[{resource[:63]}] {_EMPTY}")
        try:
            quantity.parse(amount)
        except ValueError as error:
            raise ValueError(f"{path}[{resource[:63]}]: {error}") from None


def _shaped(what: dict[str, Any], shapes: dict[str, str], path: str) -> dict[str, Any]:
    """A shallow copy without null fields. Raises ValueError naming a field of the wrong type."""
    shaped = {name: value for name, value in what.items() if value is not None or name not in shapes}
    for name, shape in shapes.items():
        if name not in shaped:
            continue
        value = shaped[name]
        if shape in (_OBJECTS, _TEXTS):
            inner = dict if shape == _OBJECTS else str
            if isinstance(value, list) and None in value:
                raise ValueError(f"{path}.{name}[{value.index(None)}] {_EMPTY}")
            if not isinstance(value, list) or not all(isinstance(v, inner) for v in value):
                raise ValueError(f"{path}.{name} must be {shape}")
            if inner is dict:
                _check_entries(value, f"{path}.{name}")
        elif not isinstance(value, str if shape == "a text" else dict):
            raise ValueError(f"{path}.{name} must be {shape}")
    return shaped


def _check_entries(entries: Sequence[Mapping[str, Any]], path: str) -> None:
    for name in _ENTRY_TEXTS:
        given = list(map(operator.methodcaller("get", name), entries))  # there may be thousands
        if not set(map(type, given)) <= {str, NoneType}:
            i = next(i for i, value in enumerate(given) if not isinstance(value, str | None))
            raise ValueError(f"{path}[{i}].{name} must be a text: {_QUOTE}")


def _check_metadata(template: dict[str, Any], containers: list[str]) -> None:
    metadata = template.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError("metadata must be an object with labels and annotations, or be left out")  # noqa: TRY004
    for field in ("labels", "annotations"):
        texts = metadata.get(field) or {}
        if not isinstance(texts, dict):
            raise ValueError(f"metadata.{field} must map names to texts")  # noqa: TRY004
        _check_texts(texts, f"metadata.{field}[{{}}]", str)
    trainer = (metadata.get("annotations") or {}).get(names.ANNOTATION_TRAINER)
    if trainer and trainer not in containers:
        raise ValueError(
            f"metadata.annotations[{names.ANNOTATION_TRAINER}] names {trainer!r}, which is not a container: "
            f"use one of {', '.join(containers)}"
        )


def template_hash(template: Mapping[str, Any]) -> str:
    """A short hash of the pod template, independent of the order of keys."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_SIZES = ("cpu", "memory")  # what can change in a pod that runs
Size = tuple[str, str, str, str]  # container, "requests" or "limits", resource, amount


class Shape(NamedTuple):
    """The amounts of CPU and memory of the containers, and the hash of everything else.

    If there are very many, the hash is of the whole template, and no pod is resized in place.
    """

    hash: str
    sizes: tuple[Size, ...]


def find_shape(template: Mapping[str, Any]) -> Shape:
    """The two parts of a template."""
    containers = template["spec"]["containers"]
    sizes = find_sizes(containers)
    if len(sizes) > MOST_SIZES:
        return Shape(template_hash(template), ())
    rest = [{**c, "resources": _without_amounts(c)} for c in containers]
    hashed = template_hash({**template, "spec": {**template["spec"], "containers": rest}})
    return Shape(hashed, sizes)


def _without_amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    masked = {
        kind: {name: "" if name in _SIZES else value for name, value in (resources.get(kind) or {}).items()}
        for kind in ("requests", "limits")
    }
    return {**resources, **masked}


def find_sizes(containers: Sequence[Mapping[str, Any]]) -> tuple[Size, ...]:
    """The CPU and memory of containers; a limit is the request if none is set, as the API server completes it."""
    found: list[Size] = []
    for container in containers:
        limits = (container.get("resources") or {}).get("limits") or {}
        for kind, amounts in (("requests", quantity.find_requests(container)), ("limits", limits)):
            found += [(container["name"], kind, r, _normalize(amounts[r])) for r in _SIZES if r in amounts]
    return tuple(found)


def _normalize(amount: object) -> str:
    try:
        return f"{quantity.parse(amount).normalize():f}"
    except ValueError:
        return numerals.shorten(amount)  # the API server accepts no such pod


# What the init container that installs a job's requirements has in common with the trainer.
INSTALLER_FIELDS = ("image", "imagePullPolicy", "env", "envFrom", "resources", "securityContext")


def trainer_container(template: Mapping[str, Any]) -> str:
    """The name of the trainer container: the annotated one, by default the first."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    first: str = template["spec"]["containers"][0]["name"]
    return annotations.get(names.ANNOTATION_TRAINER) or first


def find_mount(template: Mapping[str, Any], path: str) -> str:
    """The mount path of the trainer's volume that this path is on, above it or below it; "" if there is none."""
    trainer = trainer_container(template)
    container = next(c for c in template["spec"]["containers"] if c["name"] == trainer)
    for mount in container.get("volumeMounts") or ():
        where = str(mount.get("mountPath", "")).rstrip("/") + "/"
        if f"{path}/".startswith(where) or where.startswith(f"{path}/"):
            return where.rstrip("/") or "/"
    return ""


def find_killing_probe(template: Mapping[str, Any]) -> str:
    """The field of the trainer's probe or hook for which the kubelet kills it if it fails; "" if there is none."""
    trainer = trainer_container(template)
    container = next(c for c in template["spec"]["containers"] if c["name"] == trainer)
    probe = next((name for name in ("livenessProbe", "startupProbe") if container.get(name)), "")
    lifecycle = container.get("lifecycle")
    if not probe and isinstance(lifecycle, Mapping) and lifecycle.get("postStart"):
        probe = "lifecycle.postStart"
    return f"spec.template.spec.containers[{trainer}].{probe}" if probe else ""


# The resources that are devices to train on, by name or by the beginning of it. A shared GPU counts as one device.
DEVICES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-",
    "amd.com/gpu",
    "google.com/tpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
)
_DEVICE_FAMILIES = tuple(name for name in DEVICES if name.endswith("-"))
# Those that are something else: networks, memory, CPUs of another kind, parts of a device that is counted itself.
_NO_DEVICES = (
    *("rdma/", "vpc.amazonaws.com/", "networking.gke.io", "kubernetes.io/", "cpu.", "mellanox.com/"),
    *("gpu.intel.com/memory.max", "gpu.intel.com/millicores", "gpu.intel.com/tiles"),
    *("gpu.intel.com/i915_monitoring", "gpu.intel.com/xe_monitoring"),
)


def _is_device(resource: str) -> bool:
    return resource in DEVICES or resource.startswith(_DEVICE_FAMILIES)


def _trainer_resources(template: Mapping[str, Any]) -> Mapping[str, Any]:
    trainer = trainer_container(template)
    container = next(c for c in template["spec"]["containers"] if c["name"] == trainer)
    return container.get("resources") or {}


MOST_PROCESSES: Final = 1024  # of a pod; no node has as many devices


def count_devices(template: Mapping[str, Any]) -> int:
    """Accelerators of the trainer: those in its limits that are known, and one for each of its resource claims.

    How many devices a claim stands for is written in an object that the operator does not read.
    """
    resources = _trainer_resources(template)
    limits = resources.get("limits") or {}
    counted = sum(numerals.read_count(value) or 0 for name, value in limits.items() if _is_device(name))
    return counted + len(find_claims(template))


def find_claims(template: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the trainer's resource claims."""
    claims = _trainer_resources(template).get("claims")
    return tuple(str(c.get("name")) for c in claims if isinstance(c, Mapping)) if isinstance(claims, list) else ()


def find_unknown_devices(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Extended resources in the trainer's limits that may be accelerators, and that nobody here knows."""
    limits = _trainer_resources(template).get("limits") or {}
    extended = [name for name in limits if "/" in name and not name.startswith(_NO_DEVICES)]
    return tuple(sorted(name for name in extended if not _is_device(name)))


def count_cpus(template: Mapping[str, Any]) -> int:
    """Whole CPUs in the trainer's limits (or requests), at least 1."""
    try:
        return max(1, math.floor(quantity.parse(_find_cpus(template) or 1)))
    except ValueError:  # the API server reports the invalid quantity
        return 1


def _find_cpus(template: Mapping[str, Any]) -> Any:
    resources = _trainer_resources(template)
    return (resources.get("limits") or {}).get("cpu") or (resources.get("requests") or {}).get("cpu")


def leaves_nproc_to_pods(wanted: int | str, template: Mapping[str, Any]) -> bool:
    """Whether each pod has as many worker processes as CPUs, and the template does not say how many these are.

    The kubelet knows: those of a LimitRange that the API server has set in the pod, or else all of the node.
    """
    return wanted == "cpu" and not _find_cpus(template)


def resolve_nproc(wanted: int | str, template: Mapping[str, Any]) -> int:
    """Worker processes per pod, from `spec.nprocPerNode` and the resources of the trainer container."""
    if isinstance(wanted, int):
        return wanted
    found = count_cpus(template) if wanted == "cpu" else max(1, count_devices(template) - _count_spare_parts(template))
    return min(found, MOST_PROCESSES)


# A process sees one part of a divided GPU (MIG) only, and NCCL joins no two processes that share one in time.
_PARTS = ("nvidia.com/mig-", "nvidia.com/gpu.shared")


def _count_spare_parts(template: Mapping[str, Any]) -> int:
    """Parts of GPUs in the trainer's limits beyond the one that the process of a pod can use."""
    limits = _trainer_resources(template).get("limits") or {}
    parts = sum(numerals.read_count(value) or 0 for name, value in limits.items() if name.startswith(_PARTS))
    return max(0, parts - 1)
