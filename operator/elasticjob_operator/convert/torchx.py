"""A TorchX application (`torchx.specs.AppDef`) as JSON or YAML, or as `torchx run --dryrun` prints it.

The command prints Python values below the line `=== APPLICATION ===`. They are read as literals; nothing is evaluated.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, Final

from elasticjob_operator.convert import commands, launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source, as_name

_TITLE: Final = re.compile(r"^=== APPLICATION ===$", re.MULTILINE)
_NEXT: Final = re.compile(r"^=== ", re.MULTILINE)
_ENUM: Final = re.compile(r"<\w+\.\w+: ('\w*'|\d+)>")  # how Python prints RetryPolicy
_MACRO: Final = re.compile(r"\$\{(app_id|replica_id|rank0_env|img_root|base_img_root)\}")
_MOST: Final = 1_000_000  # characters


def read_printed(text: str) -> dict[str, Any] | None:
    """The application in the output of `torchx run --dryrun`; None if the text is something else."""
    title = _TITLE.search(text[:_MOST])
    if title is None:
        return None
    rest = text[title.end() : _MOST]
    end = _NEXT.search(rest)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = ast.literal_eval(_ENUM.sub(r"\1", rest[: end.start() if end else None]).strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        values = None
    if not isinstance(values, dict):
        raise ConversionError("=== APPLICATION ===: is not followed by what `torchx run --dryrun` prints")
    return values


def is_application(document: dict[Any, Any]) -> bool:
    return "kind" not in document and isinstance(document.get("roles"), list)


def fill(draft: Draft) -> None:
    source = Source(draft.document, "app", draft)
    name = source.take_text("name")
    roles = source.take_parts("roles")
    if not roles:
        raise ConversionError("app.roles: is required: give the role that trains")
    role = next((role for role in roles if "torchrun" in str(role.values.get("args"))), roles[0])
    for other in roles:
        if other is not role:
            draft.warn(other.path, f"{other.values.get('name')} was dropped: an ElasticJob has one kind of pod")
    _fill_role(draft, role)
    role.finish()
    if source.take("metadata"):
        source.warn("metadata", "was dropped: its meaning depends on the scheduler")
    source.finish()
    draft.document = {"kind": "AppDef", "metadata": {"name": as_name(name or role.values.get("name"), "app")}}


def _fill_role(draft: Draft, role: Source) -> None:
    words = [role.take_text("entrypoint"), *role.take_texts("args")]
    plain = commands.unwrap(words)
    if plain is None:
        raise ConversionError(f"{role.path}.args: has more than one shell command: leave only the one that trains")
    for key, value in role.part("env").values.items():
        if _MACRO.search(str(value)):
            draft.warn(f"{role.path}.env.{key}", f"was dropped: {value} is only known to TorchX")
        elif key != "PATH":  # of the machine that printed it
            commands.add_variable(draft, str(key), str(value))
    container: dict[str, Any] = {
        "name": as_name(role.take("name"), "trainer"),
        "image": role.take("image") or pods.PLACEHOLDER_IMAGE,
    }
    if container["image"] == pods.PLACEHOLDER_IMAGE:
        role.warn("image", f"is not given: put the image instead of {pods.PLACEHOLDER_IMAGE}")
    spec: dict[str, Any] = {"containers": [container]}
    _take_resource(draft, role.part("resource"), container, spec)
    _take_mounts(draft, role, container, spec)
    commands.set_command(draft, container, commands.to_torchrun(draft, plain, f"{role.path}.args"))
    pods.take_template(draft, {"spec": spec}, role.path, str(container["name"]))
    launcher.take_arguments(draft, f"{role.path}.args")
    for word in pods.trainer_of(draft)["command"]:
        if _MACRO.search(word):
            draft.warn(f"{role.path}.args", f"{word} is only known to TorchX: write the value")
    low, replicas = role.take_number("min_replicas"), role.take_number("num_replicas")
    pods.take_bounds(draft, low, replicas if low is not None else None, replicas, f"{role.path}.num_replicas")
    retries = role.take_number("max_retries")
    if retries:
        draft.elastic.setdefault("maxRestarts", retries)
    role.take("port_map")  # c10d's rendezvous
    for key in ("base_image", "workspace", "overrides", "metadata"):
        if role.take(key):
            role.warn(key, "has no counterpart and was dropped")
    policy = role.take("retry_policy")
    if policy not in (None, "APPLICATION", "ROLE", "REPLICA"):
        role.warn("retry_policy", f"{policy!r} was dropped: a lost pod is replaced, and all workers start again")


def _take_resource(draft: Draft, resource: Source, container: dict[str, Any], spec: dict[str, Any]) -> None:
    cpu, memory, gpus = (resource.take_number(key) for key in ("cpu", "memMB", "gpu"))
    requests = {"cpu": str(cpu) if cpu and cpu > 0 else None, "memory": f"{memory}M" if memory and memory > 0 else None}
    limits = {"nvidia.com/gpu": gpus if gpus and gpus > 0 else None}
    for device, count in resource.part("devices").values.items():
        if "/" in str(device):
            limits[str(device)] = count
        else:
            resource.warn(f"devices.{device}", "has no counterpart: set the device in the container's resources")
    found = {key: kept for key, all_ in (("requests", requests), ("limits", limits)) if (kept := _given(all_))}
    if found:
        container["resources"] = found
    for key, value in resource.part("capabilities").values.items():
        if "/" in str(key):
            spec.setdefault("nodeSelector", {})[str(key)] = str(value)
        else:
            resource.warn(f"capabilities.{key}", "has no counterpart: set a nodeSelector in the template")
    resource.take("tags")
    resource.finish()


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _take_mounts(draft: Draft, role: Source, container: dict[str, Any], spec: dict[str, Any]) -> None:
    """Folders of the node, claims of volumes, and devices, which have no counterpart."""
    for number, mount in enumerate(role.take_parts("mounts")):
        where, read_only = mount.take("dst_path"), bool(mount.take("read_only"))
        folder, claim = mount.take("src_path"), mount.take("src")
        if not where or not (folder or claim) or "permissions" in mount.values:
            draft.warn(mount.path, "has no counterpart: mount it in the template")
            continue
        volume = f"mount-{number}"
        kind = {"hostPath": {"path": folder}} if folder else {"persistentVolumeClaim": {"claimName": claim}}
        spec.setdefault("volumes", []).append({"name": volume, **kind})
        entry = {"name": volume, "mountPath": where, "readOnly": True if read_only else None}
        container.setdefault("volumeMounts", []).append(_given(entry))
        mount.finish()
