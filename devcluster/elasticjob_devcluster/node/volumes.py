"""Volumes of a pod, as directories below the node's directory.

Files are published like the kubelet does: a new directory is filled, then one symbolic link is switched, so a reader
sees either the old or the new set, and never a partly written token. This module fetches the content of volumes; the
sandbox mounts them.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elasticjob_devcluster.node.client import Api, ApiError
from elasticjob_devcluster.node.environ import ConfigError, Raw, field_value, resource_value

TOKEN_REFRESH_SHARE: Final = 0.8
CONFIG_REFRESH_SECONDS: Final = 30.0
OPTIONAL_REFRESH_SECONDS: Final = 2.0  # somebody waits for what a pod can do without at first


class VolumeError(Exception):
    """A volume cannot be created yet: the pod waits in ContainerCreating and the node retries."""


@dataclass(frozen=True)
class File:
    content: bytes
    mode: int


@dataclass(frozen=True)
class Node:
    """The properties of the node that volumes need."""

    api: Api
    address: str
    allocatable: Mapping[str, str]


class PodVolumes:
    """All volumes of one pod; their content must be fetched again at `refresh_at`."""

    def __init__(self, node: Node, pod: Raw, directory: Path, pod_ip: str) -> None:
        self.node = node
        self.pod = pod
        self.directory = directory
        self.pod_ip = pod_ip
        self.refresh_at = float("inf")
        self._claimed: dict[str, Path] = {}  # by the name of the volume: the folder of its PersistentVolume

    def path(self, name: str) -> Path:
        """The path of the volume's content on the host."""
        volume = next(v for v in self.pod["spec"].get("volumes") or () if v["name"] == name)
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        return self._claimed.get(name, self.directory / name)

    async def publish(self) -> None:
        """Create or update every volume. Raises VolumeError."""
        self.refresh_at = float("inf")
        for volume in self.pod["spec"].get("volumes") or ():
            await self._publish(volume)

    async def _publish(self, volume: Raw) -> None:
        name = volume["name"]
        path = self.directory / name
        if "hostPath" in volume:
            _prepare_host_path(Path(volume["hostPath"]["path"]), volume["hostPath"].get("type") or "")
            return
        if "persistentVolumeClaim" in volume:
            self._claimed[name] = await self._find_claimed(volume["persistentVolumeClaim"]["claimName"])
            return
        path.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            path.chmod(0o777)
            return
        sources = await self._files_of(name, volume)
        publish_files(path, sources)

    async def _find_claimed(self, claim: str) -> Path:
        """The folder of the PersistentVolume that this claim is bound to. The node has no other kinds of storage."""
        namespace = self.pod["metadata"]["namespace"]
        try:
            found = await self.node.api.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
            volume = found["spec"].get("volumeName")
            if not volume:
                raise VolumeError(f'persistentvolumeclaim "{claim}" is not bound')
            spec = (await self.node.api.request("GET", f"/api/v1/persistentvolumes/{volume}"))["spec"]
        except ApiError as error:
            raise VolumeError(f'persistentvolumeclaim "{claim}": {error}') from error
        source = spec.get("hostPath") or spec.get("local")
        if source is None:
            raise VolumeError(f'persistentvolume "{volume}": the devcluster supports hostPath and local only')
        _prepare_host_path(Path(source["path"]), source.get("type") or "")
        return Path(source["path"])

    async def _files_of(self, name: str, volume: Raw) -> dict[str, File]:
        if "configMap" in volume:
            return await self._object_files("configmaps", volume["configMap"], "name")
        if "secret" in volume:
            return await self._object_files("secrets", volume["secret"], "secretName")
        if "downwardAPI" in volume:
            return self._downward(volume["downwardAPI"])
        if "projected" in volume:
            return await self._projected(volume["projected"])
        kind = next((k for k in volume if k != "name"), "unknown")
        raise VolumeError(f'volume "{name}": {kind} volumes are not supported by the devcluster')

    async def _projected(self, projected: Raw) -> dict[str, File]:
        files: dict[str, File] = {}
        mode = projected.get("defaultMode") or 0o644
        for source in projected.get("sources") or ():
            if "serviceAccountToken" in source:
                ref = source["serviceAccountToken"]
                files[ref["path"]] = File(await self._token(ref), mode)
            elif "configMap" in source:
                files |= await self._object_files("configmaps", {"defaultMode": mode, **source["configMap"]}, "name")
            elif "secret" in source:
                files |= await self._object_files("secrets", {"defaultMode": mode, **source["secret"]}, "name")
            elif "downwardAPI" in source:
                files |= self._downward({"defaultMode": mode, **source["downwardAPI"]})
            else:
                raise VolumeError(f"projected source {sorted(source)} is not supported by the devcluster")
        return files

    async def _token(self, ref: Raw) -> bytes:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        account = spec.get("serviceAccountName") or "default"
        seconds = ref.get("expirationSeconds") or 3600
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [ref["audience"]] if ref.get("audience") else [],
                "expirationSeconds": seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        try:
            answer = await self.node.api.request("POST", path, body)
        except ApiError as error:
            raise VolumeError(f"failed to fetch token: {error}") from error
        self._refresh_in(seconds * TOKEN_REFRESH_SHARE)
        return str(answer["status"]["token"]).encode()

    async def _object_files(self, plural: str, source: Raw, key: str) -> dict[str, File]:
        name = source[key]
        namespace = self.pod["metadata"]["namespace"]
        if source.get("optional"):
            self._refresh_in(OPTIONAL_REFRESH_SECONDS)
        data = await fetch_data(self.node.api, namespace, plural, name)
        kind = plural.rstrip("s")
        if data is None:
            if source.get("optional"):
                return {}
            raise VolumeError(f'MountVolume.SetUp failed: {kind} "{name}" not found')
        self._refresh_in(CONFIG_REFRESH_SECONDS)
        default = source.get("defaultMode") or 0o644
        if not source.get("items"):
            return {k: File(v, default) for k, v in data.items()}
        files = {}
        for item in source["items"]:
            if item["key"] in data:
                files[item["path"]] = File(data[item["key"]], item.get("mode") or default)
            elif not source.get("optional"):
                raise VolumeError(f"{kind} references non-existent key: {item['key']}")
        return files

    def _downward(self, source: Raw) -> dict[str, File]:
        files = {}
        for item in source.get("items") or ():
            mode = item.get("mode") or source.get("defaultMode") or 0o644
            try:
                text = self._downward_text(item)
            except ConfigError as error:
                raise VolumeError(str(error)) from error
            files[item["path"]] = File(text.encode(), mode)
        return files

    def _downward_text(self, item: Raw) -> str:
        if "fieldRef" in item:
            path = item["fieldRef"]["fieldPath"]
            return field_value(self.pod, path, pod_ip=self.pod_ip, host_ip=self.node.address)
        ref = item["resourceFieldRef"]
        container = next(c for c in self.pod["spec"]["containers"] if c["name"] == ref["containerName"])
        return resource_value(container, self.node.allocatable, ref["resource"], ref.get("divisor"))

    def _refresh_in(self, seconds: float) -> None:
        self.refresh_at = min(self.refresh_at, time.time() + seconds)


async def fetch_data(api: Api, namespace: str, plural: str, name: str) -> dict[str, bytes] | None:
    """The content of a ConfigMap or Secret, None if it does not exist."""
    try:
        found = await api.request("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise VolumeError(str(error)) from error
    if plural == "secrets":
        return {k: base64.b64decode(v) for k, v in (found.get("data") or {}).items()}
    plain = {k: str(v).encode() for k, v in (found.get("data") or {}).items()}
    return plain | {k: base64.b64decode(v) for k, v in (found.get("binaryData") or {}).items()}


def publish_files(path: Path, files: Mapping[str, File]) -> None:
    """Replace the visible files atomically."""
    current = path / "..data"
    if current.exists() and _same(current, files):
        return
    generation = path / f"..{time.time_ns()}"
    for name, file in files.items():
        target = generation / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    generation.mkdir(exist_ok=True)
    previous = path / current.readlink() if current.is_symlink() else None
    fresh = path / "..data_tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(generation.name)
    fresh.rename(current)
    wanted = {name.split("/")[0] for name in files}
    for name in wanted:
        if not (path / name).is_symlink():
            (path / name).symlink_to(f"..data/{name}")
    for entry in list(path.iterdir()):
        if entry.is_symlink() and entry.name != "..data" and entry.name not in wanted:
            entry.unlink()
    if previous is not None:
        shutil.rmtree(previous, ignore_errors=True)


def _same(current: Path, files: Mapping[str, File]) -> bool:
    root = current.resolve()
    present = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return present == {name: file.content for name, file in files.items()}


def _prepare_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    elif kind == "Directory" and not path.is_dir():
        raise VolumeError(f"hostPath type check failed: {path} is not a directory")
    elif not path.exists():
        raise VolumeError(f"hostPath type check failed: {path} does not exist")
