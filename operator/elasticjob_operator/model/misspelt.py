"""Fields of a pod template that are written wrongly, or in the wrong place. Pure.

The API server drops a field that it does not know, and says so only to who creates the pod. A field that merely is new
is not told: what is told has the name of another field, or nearly.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from elasticjob_operator.api import fields, podfields
from elasticjob_operator.api.podtemplate import PREFERRED, REQUIRED

FIELDS: Final[Mapping[str, frozenset[str]]] = {
    **podfields.POD_FIELDS,
    "job": frozenset(fields.FIELDS),
}
# (kind, field) → the kind of what is in it.
_INNER: Final = {
    ("template", "spec"): "pod",
    ("pod", "affinity"): "affinity",
    ("pod", "containers"): "container",
    ("pod", "dnsConfig"): "DNS",
    ("pod", "initContainers"): "container",
    ("pod", "resources"): "resources",
    ("pod", "securityContext"): "securityContext of a pod",
    ("pod", "tolerations"): "toleration",
    ("pod", "topologySpreadConstraints"): "spread",
    ("pod", "volumes"): "volume",
    ("container", "resources"): "resources",
    ("container", "securityContext"): "securityContext",
    ("container", "volumeMounts"): "mount",
    ("container", "env"): "variable",
    ("container", "envFrom"): "source",
    ("container", "ports"): "port",
    ("container", "lifecycle"): "lifecycle",
    ("container", "livenessProbe"): "probe",
    ("container", "readinessProbe"): "probe",
    ("container", "startupProbe"): "probe",
    ("lifecycle", "postStart"): "hook",
    ("lifecycle", "preStop"): "hook",
    ("securityContext", "capabilities"): "capabilities",
    ("volume", "emptyDir"): "folder",
    ("variable", "valueFrom"): "origin",
    ("affinity", "nodeAffinity"): "affinity to nodes",
    ("affinity", "podAffinity"): "affinity to pods",
    ("affinity", "podAntiAffinity"): "affinity to pods",
    ("affinity to nodes", PREFERRED): "weight of nodes",
    ("affinity to nodes", REQUIRED): "selector of nodes",
    ("affinity to pods", PREFERRED): "weight of pods",
    ("affinity to pods", REQUIRED): "term of pods",
    ("selector of nodes", "nodeSelectorTerms"): "term of nodes",
    ("weight of nodes", "preference"): "term of nodes",
    ("weight of pods", "podAffinityTerm"): "term of pods",
    ("term of pods", "labelSelector"): "selector of labels",
    ("term of pods", "namespaceSelector"): "selector of labels",
    ("spread", "labelSelector"): "selector of labels",
}
# Kind → the kinds whose fields are looked for next, and where these are.
_ELSEWHERE: Final = {
    "template": (("pod", "spec.template.spec"), ("job", "spec")),
    "pod": (("container", "the container: spec.template.spec.containers[]"), ("job", "spec")),
    "container": (
        ("pod", "the pod: spec.template.spec"),
        ("securityContext", "its securityContext"),
        ("resources", "its resources"),
    ),
    "securityContext of a pod": (
        ("securityContext", "the container: spec.template.spec.containers[].securityContext"),
    ),
    "securityContext": (("securityContext of a pod", "the pod: spec.template.spec.securityContext"),),
}
_ALIKE: Final = 0.85
_BEGINS: Final = 10  # letters with which only one field begins
# To compare a field with all others takes about a millisecond, and who writes thousands has not misspelt them.
MOST_COMPARED: Final = 16  # unknown fields of a template
MOST_ITEMS: Final = 256  # of a list: no pod has as many containers


def find_misspelt(template: object) -> Iterator[str]:
    """What is wrong with each such field, with the remedy; of very many, with the first ones."""
    return _look_into(template, "template", "spec.template", iter(range(MOST_COMPARED)))


def _look_into(raw: object, kind: str, path: str, left: Iterator[int]) -> Iterator[str]:
    if not isinstance(raw, Mapping):
        return
    if kind == "volume" and len(raw) > 1 and not raw.keys() & (FIELDS[kind] - {"name"}):
        others = ", ".join(str(name)[:64] for name in raw if name != "name")
        yield (
            f"{path} has no source but {others}, which this version does not know: an API server that does not know it "
            "makes it an empty folder; a claim is a persistentVolumeClaim"
        )
        return
    for name, value in raw.items():
        here = f"{path}.{str(name)[:64]}"
        if name not in FIELDS[kind]:
            if next(left, None) is None:
                return
            remedy = _find_remedy(str(name), kind, path)
            if remedy:
                yield f"{here} is no field there, and the API server ignores it: {remedy}"
            continue
        inner = _INNER.get((kind, name))
        if inner is None:
            continue
        if not isinstance(value, list):
            yield from _look_into(value, inner, here, left)
            continue
        for i, one in enumerate(value[:MOST_ITEMS]):
            yield from _look_into(one, inner, f"{here}[{i}]", left)


def _find_remedy(name: str, kind: str, path: str) -> str:
    meant = _find_alike(name, FIELDS[kind])
    if meant:
        return f"did you mean {path}.{meant}?"
    for other, where in _ELSEWHERE.get(kind, ()):
        meant = name if name in FIELDS[other] else _find_alike(name, FIELDS[other])
        if meant:
            return f"{meant} belongs to {where}"
    return ""


def _find_alike(name: str, known: frozenset[str]) -> str:
    folded = name.replace("_", "").replace("-", "").lower()
    for field in sorted(known):
        if field.lower() in (folded, f"{folded}s", folded.removesuffix("s")):
            return field
    if len(folded) >= _BEGINS:
        begun = [field for field in known if field.lower().startswith(folded)]
        if len(begun) == 1:
            return begun[0]
    return next(iter(difflib.get_close_matches(name[:64], sorted(known), 1, _ALIKE)), "")
