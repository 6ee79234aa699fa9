"""Adds a bundle to a job's manifest: the ConfigMap, its volume, and how pods find it. Pure."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.api.podtemplate import trainer_container
from elasticjob_operator.client.errors import InvalidError
from elasticjob_operator.client.rules import check_manifest
from elasticjob_operator.launch.bundle import Bundle, File
from elasticjob_operator.launch.packages import add_search_path, build_installer
from elasticjob_operator.untyped import as_object

MOST_NAME: Final = 253


@dataclass(frozen=True)
class Shipment:
    """A job, and the ConfigMap that it mounts; None if its code is elsewhere."""

    manifest: dict[str, Any]
    config_map: dict[str, Any] | None = None


def attach(manifest: Mapping[str, Any], bundle: Bundle) -> Shipment:
    """The manifest with the bundle mounted at CODE_PATH, its working directory unless it names one.

    Raises InvalidError or api.InvalidJobError, which name the field.
    """
    check_manifest(manifest)
    run_policy = as_object(manifest["spec"].get("runPolicy"))
    named = {
        "spec.managedBy": manifest["spec"].get("managedBy"),
        "spec.runPolicy.managedBy": run_policy.get("managedBy"),
    }
    field = next((field for field, manager in named.items() if manager == names.MULTIKUEUE), None)
    if field is not None:
        raise InvalidError(
            f"{field}: MultiKueue sends the job to another cluster, and not the ConfigMap with its code: build "
            "the code into the image, or clone it in an init container"
        )
    result = copy.deepcopy(dict(manifest))
    metadata = result.setdefault("metadata", {})
    check_name(metadata.get("name"))
    described = {names.ANNOTATION_CODE: f"sha256:{bundle.digest}"}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **described}
    name = names.code_config_map_name(metadata["name"], bundle.digest)
    template = result["spec"].setdefault("template", {})
    template["metadata"] = {**(template.get("metadata") or {})}
    template["metadata"]["annotations"] = {**(template["metadata"].get("annotations") or {}), **described}
    spec = template.setdefault("spec", {})
    spec.setdefault("containers", [{"name": "worker"}])  # an ElasticJobTemplate has the rest
    trainer = next(c for c in spec["containers"] if c["name"] == trainer_container(template))
    for path in (m.get("mountPath") for m in trainer.get("volumeMounts") or ()):
        if str(path).rstrip("/") == names.CODE_PATH:
            raise InvalidError(
                f"volumeMounts: {names.CODE_PATH} is where the code goes: mount the other volume elsewhere"
            )
    items = [item | ({"mode": 0o555} if file.executable else {}) for item, file in find_items(bundle)]
    _mount(spec, trainer, {"name": names.VOLUME_CODE, "configMap": {"name": name, "items": items}}, names.CODE_PATH)
    trainer.setdefault("workingDir", names.CODE_PATH)
    for slot in names.UPDATE_SLOTS:  # for what `update` sends, which the kubelets bring when it is there
        source = {"name": names.update_config_map_name(metadata["name"], slot), "optional": True}
        volume = {"name": f"{names.VOLUME_UPDATE}-{slot}", "configMap": source}
        _mount(spec, trainer, volume, f"{names.UPDATES_PATH}/{slot}")
    if bundle.requirements is not None:
        installer = build_installer(trainer, bundle.requirements)
        spec["initContainers"] = [*(spec.get("initContainers") or []), installer]
        _mount(spec, trainer, {"name": names.VOLUME_PACKAGES, "emptyDir": {}}, names.PACKAGES_PATH)
        trainer["env"] = add_search_path(trainer.get("env") or [])
    return Shipment(result, build_config_map(name, bundle, described))


def check_name(name: Any) -> None:
    """Raises InvalidError if a job cannot have this name, or if there is none for its ConfigMap."""
    if not name:
        raise InvalidError("metadata.name: is required for a job with code: the ConfigMap is named after it")
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if not isinstance(name, str) or len(name) > MOST_NAME or not re.fullmatch(rf"{part}(\.{part})*", name):
        raise InvalidError(
            f"metadata.name: {str(name)[:80]!r}: must be lower-case letters, digits, '-' and '.', begin and end with a "
            f"letter or digit, and have at most {MOST_NAME} characters"
        )


def build_config_map(name: str, bundle: Bundle, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The immutable ConfigMap of a bundle: text as text, so that people can read it, the rest in base64."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for number, file in enumerate(bundle.files):
        readable = _as_text(file.content)
        if readable is None:
            binary[_key(number, file)] = base64.b64encode(file.content).decode()
        else:
            text[_key(number, file)] = readable
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "immutable": True,
        "data": text,
        "binaryData": binary,
    }


def owned_by(config_map: Mapping[str, Any], job: str, uid: str) -> dict[str, Any]:
    """The ConfigMap with the job as its owner, so that it is deleted with it."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": uid}
    return {**config_map, "metadata": {**config_map["metadata"], "ownerReferences": [owner]}}


def default_name(script: str, suffix: str) -> str:
    """A name that Kubernetes takes, from a script's: `Train_v2.py` → `train-v2-3f9a`."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].rstrip("-")
    return f"{stem or 'job'}-{suffix}"


def _key(number: int, file: File) -> str:
    """A key that ConfigMaps take, and that people recognize."""
    return f"{number}-{re.sub(r'[^-._a-zA-Z0-9]', '_', file.path)[-100:]}"


def find_items(bundle: Bundle) -> list[tuple[dict[str, Any], File]]:
    """Each file, with its key in the ConfigMap and its path."""
    return [({"key": _key(number, file), "path": file.path}, file) for number, file in enumerate(bundle.files)]


def _as_text(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _mount(spec: dict[str, Any], trainer: dict[str, Any], volume: dict[str, Any], path: str) -> None:
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    mount = {"name": volume["name"], "mountPath": path, "readOnly": True}
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), mount]
