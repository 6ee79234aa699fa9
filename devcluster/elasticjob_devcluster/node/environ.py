"""A container's environment and command line, by the kubelet's rules. Pure: data that must be fetched is passed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

Raw = Mapping[str, Any]

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")
_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_ENV_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))")
_SUFFIX: Final[Mapping[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


class ConfigError(Exception):
    """The container cannot be configured: waiting reason CreateContainerConfigError."""

    reason = "CreateContainerConfigError"


class CreateError(ConfigError):
    """The container runtime cannot even be asked for the container: waiting reason CreateContainerError."""

    reason = "CreateContainerError"


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value and `$$` by a dollar sign; references to unknown names stay unchanged."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def parse_quantity(text: str | float) -> Decimal:
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or (match[3] or "") not in _SUFFIX:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(match[1] + (match[2] or "")) * _SUFFIX[match[3] or ""]


def field_value(pod: Raw, path: str, *, pod_ip: str, host_ip: str) -> str:
    """A downward API field of the pod."""
    metadata, spec = pod["metadata"], pod.get("spec", {})
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.split(".")[1]) or {}
        return "".join(f"{k}={_quote(v)}\n" for k, v in sorted(values.items())).rstrip("\n")
    simple = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }
    if path not in simple:
        raise ConfigError(f"fieldRef.fieldPath {path!r} is not supported")
    return str(simple[path])


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def resource_value(container: Raw, allocatable: Mapping[str, str], resource: str, divisor: str | None) -> str:
    """A `resourceFieldRef`, rounded up: limits default to the node's allocatable, requests to the limits."""
    kind, _, name = resource.partition(".")
    resources = container.get("resources") or {}
    limit = (resources.get("limits") or {}).get(name)
    if kind == "requests":
        value = (resources.get("requests") or {}).get(name, limit if limit is not None else "0")
    elif kind == "limits":
        value = limit if limit is not None else allocatable.get(name, "0")
    else:
        raise ConfigError(f"resourceFieldRef.resource {resource!r} must begin with limits. or requests.")
    unit = parse_quantity(divisor or "1")
    amount = parse_quantity(value) / (unit if unit != 0 else Decimal(1))
    return str(int(amount.to_integral_value(rounding="ROUND_CEILING")))


def references(container: Raw) -> set[tuple[str, str]]:
    """The ConfigMaps and Secrets that the environment needs, as (kind, name)."""
    found: set[tuple[str, str]] = set()
    for source in container.get("envFrom") or ():
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if key in source:
                found.add((kind, source[key]["name"]))
    for entry in container.get("env") or ():
        origin = entry.get("valueFrom") or {}
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if key in origin:
                found.add((kind, origin[key]["name"]))
    return found


def build_env(
    pod: Raw,
    container: Raw,
    objects: Mapping[tuple[str, str], Mapping[str, str] | None],
    *,
    base: Mapping[str, str],
    allocatable: Mapping[str, str],
    pod_ip: str,
    host_ip: str,
) -> dict[str, str]:
    """The variables of a container. `objects` has the data of every reference, None for missing objects."""
    result = dict(base)
    for source in container.get("envFrom") or ():
        result.update(_env_from(source, objects))
    for entry in container.get("env") or ():
        name, origin = entry["name"], entry.get("valueFrom")
        if origin is None:
            result[name] = expand(entry.get("value") or "", result)
        elif "fieldRef" in origin:
            result[name] = field_value(pod, origin["fieldRef"]["fieldPath"], pod_ip=pod_ip, host_ip=host_ip)
        elif "resourceFieldRef" in origin:
            ref = origin["resourceFieldRef"]
            subject = _container_named(pod, ref.get("containerName")) or container
            result[name] = resource_value(subject, allocatable, ref["resource"], ref.get("divisor"))
        else:
            value = _key_ref(origin, objects)
            if value is not None:
                result[name] = value
    if any(map(_is_no_text, result.values())):  # a kubelet from 1.34 on, which does not say which one
        raise CreateError("grpc: error while marshaling: string field contains invalid UTF-8")
    return result


def _is_no_text(value: str) -> bool:
    return not value.isascii() and any("\udc80" <= letter <= "\udcff" for letter in value)


def _container_named(pod: Raw, name: str | None) -> Raw | None:
    spec = pod["spec"]
    everyone: Iterable[Raw] = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return next((c for c in everyone if c["name"] == name), None) if name else None


def _env_from(source: Raw, objects: Mapping[tuple[str, str], Mapping[str, str] | None]) -> dict[str, str]:
    kind, ref = (
        ("ConfigMap", source.get("configMapRef")) if "configMapRef" in source else ("Secret", source.get("secretRef"))
    )
    if ref is None:
        return {}
    data = objects.get((kind, ref["name"]))
    if data is None:
        if ref.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{ref["name"]}" not found')
    prefix = source.get("prefix") or ""
    return {prefix + k: v for k, v in data.items() if _ENV_NAME.fullmatch(prefix + k)}


def _key_ref(origin: Raw, objects: Mapping[tuple[str, str], Mapping[str, str] | None]) -> str | None:
    key = next((k for k in ("configMapKeyRef", "secretKeyRef") if k in origin), None)
    if key is None:
        raise ConfigError(f"valueFrom {sorted(origin)} is not supported")
    kind, ref = ("ConfigMap" if key == "configMapKeyRef" else "Secret"), origin[key]
    data = objects.get((kind, ref["name"]))
    if data is not None and ref["key"] in data:
        return data[ref["key"]]
    if ref.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind.lower()} "{ref["name"]}" not found')
    raise ConfigError(f"couldn't find key {ref['key']} in {kind} {ref['name']}")


def build_argv(container: Raw, env: Mapping[str, str]) -> list[str]:
    """The command line. There are no images here, so nothing else could provide an entry point."""
    argv = [expand(part, env) for part in [*(container.get("command") or ()), *(container.get("args") or ())]]
    if not container.get("command"):
        raise ConfigError(
            "no command specified: the devcluster has no images, so the container's `command` must be set"
        )
    return argv


def rewrite_path(text: str, places: Sequence[tuple[str, str]]) -> str:
    """Replace mount paths by the volumes' real paths: for machines on which nothing can be mounted."""
    for target, source in sorted(places, key=lambda p: -len(p[0])):
        pattern = rf"(?<![\w./-]){re.escape(target.rstrip('/'))}(?=$|[/:,;\s\"'])"
        text = re.sub(pattern, source.replace("\\", r"\\"), text)
    return text
