"""The configuration of a cluster, as values: written by the process that starts it, read by its supervisor."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from elasticjob_devcluster.flags import Tuning

KUBELET_CLIENT: Final = "kube-apiserver-kubelet-client"  # the user as which the API server asks the nodes
ADMINISTRATORS: Final = "system:masters"  # no other certificate that Kubernetes signs may be in this group


@dataclass(frozen=True)
class NodeSpec:
    """A node to create: its name and its declared resources."""

    name: str
    gpus: int = 0
    cpu: int | str = 16
    memory: str = "64Gi"
    pods: int = 110
    extended: Mapping[str, int | str] = field(default_factory=dict)  # further resources, for example {"amd.com/gpu": 2}
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    runtime: str = "process"  # or "containerd": a node that runs images, as root
    sandbox: str = "auto"  # or one of `node.sandbox.Mode`: how containers see volumes

    def capacity(self) -> dict[str, str]:
        result = {"cpu": str(self.cpu), "memory": self.memory, "pods": str(self.pods)}
        if self.gpus:
            result["nvidia.com/gpu"] = str(self.gpus)
        return result | {k: str(v) for k, v in self.extended.items()}


@dataclass(frozen=True)
class ClusterConfig:
    """The supervisor's configuration; `owner` is the process whose end stops the cluster, 0 for none."""

    id: str
    directory: Path
    binaries: Path
    path: str  # PATH of the containers
    nodes: tuple[NodeSpec, ...] = ()
    tuning: Tuning = field(default_factory=Tuning)
    owner: int = 0
    keep_directory: bool = False

    def save(self) -> Path:
        path = self.directory / "config.json"
        path.write_text(json.dumps(asdict(self), default=str))
        return path

    @classmethod
    def load(cls, path: Path) -> ClusterConfig:
        raw = json.loads(path.read_text())
        return cls(
            **{
                **raw,
                "directory": Path(raw["directory"]),
                "binaries": Path(raw["binaries"]),
                "nodes": tuple(parse_node(n) for n in raw["nodes"]),
                "tuning": parse_tuning(raw["tuning"]),
            }
        )

    @property
    def etcd_data(self) -> Path:
        """In memory if possible: no data of a devcluster has to survive the machine."""
        shm = Path("/dev/shm")  # noqa: S108
        if os.access(shm, os.W_OK):
            return shm / f"elasticjob-devcluster-{self.id}"
        return self.directory / "etcd"


def parse_node(raw: Mapping[str, Any]) -> NodeSpec:
    return NodeSpec(**{**raw, "taints": tuple(raw.get("taints", ()))})


def parse_tuning(raw: Mapping[str, Any]) -> Tuning:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return Tuning(**values)


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "elasticjob" / "devcluster"


def temporary_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="elasticjob-devcluster-"))
