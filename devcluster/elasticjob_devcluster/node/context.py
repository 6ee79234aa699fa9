"""The shared context of all pods on a node: its settings, connections and addresses."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from elasticjob_devcluster.node.backoff import Backoff
from elasticjob_devcluster.node.client import Api, RuntimeClient
from elasticjob_devcluster.system import addresses


@dataclass(frozen=True)
class Settings:
    """One node, as its supervisor describes it in `node.json`."""

    name: str
    address: str
    port: int
    server: str  # the API server's address for this node: its own relay
    api_host: str  # the API server's host for pods
    api_port: int
    pki: str
    cluster: str
    path: str
    version: str
    capacity: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()
    crash_backoff: tuple[float, float] = (10.0, 300.0)
    image_backoff: tuple[float, float] = (10.0, 300.0)
    lease_seconds: float = 1.0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Settings:
        raw = json.loads(path.read_text())
        for key in ("taints", "crash_backoff", "image_backoff"):
            raw[key] = tuple(raw[key])
        return cls(**raw)


class Node:
    """The parts of the node that pods use; created once by the agent."""

    def __init__(self, settings: Settings, directory: Path, api: Api, runtime: RuntimeClient) -> None:
        self.settings = settings
        self.directory = directory
        self.api = api
        self.runtime = runtime
        self.mode = "rewrite"
        self.addresses: dict[str, str] = {}  # pod UID → address
        self.crash_backoff = Backoff(*settings.crash_backoff)
        self.image_backoff = Backoff(*settings.image_backoff)

    def claim_address(self, uid: str, wanted: str | None = None) -> str | None:
        """An address for this pod: `wanted`, its previous one, if possible. None if all are taken."""
        if uid not in self.addresses:
            used = set(self.addresses.values())
            address = wanted if wanted and wanted not in used else None
            address = address or addresses.pod_address(self.settings.address, used)
            if address is None:
                return None
            self.addresses[uid] = address
        return self.addresses[uid]

    def release_address(self, uid: str) -> None:
        self.addresses.pop(uid, None)

    def pod_directory(self, uid: str) -> Path:
        return self.directory / "pods" / uid

    def log_path(self, uid: str, container: str, attempt: int) -> Path:
        return self.directory / "logs" / uid / container / f"{attempt}.log"
