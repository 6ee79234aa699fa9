"""Kueue's own manager as a process beside a devcluster: built elsewhere, from Kueue's repository.

`ELASTICJOB_KUEUE_MANAGER` is the program, `ELASTICJOB_KUEUE_CRDS` the folder with its definitions
(config/components/crd/bases). Without internal certificates it wants a tls.crt and a tls.key in `CERTIFICATES`. No
configuration can move them; any will do, since nobody reads its metrics and no webhook of it is installed here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml

from elasticjob_devcluster import Cluster, KubeError
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import stop_process, wait_for

KIND = "ElasticJob.v1alpha1.elasticjob.dev"
READY_SECONDS = 600.0  # in which the pods of an admitted Workload have to start, unless a test wants less
WANTED = ("ELASTICJOB_KUEUE_MANAGER", "ELASTICJOB_KUEUE_CRDS")
CERTIFICATES = (Path("/etc/kueue/metrics/certs"), Path("/tmp/k8s-webhook-server/serving-certs"))


def find_missing() -> str:
    """Why Kueue itself cannot be tried; "" where it can."""
    if missing := [name for name in WANTED if not os.environ.get(name)]:
        return f"set {' and '.join(missing)} to try Kueue itself"
    if missing := [str(folder) for folder in CERTIFICATES if not (folder / "tls.crt").exists()]:
        return f"put a tls.crt and a tls.key into {' and '.join(missing)}: Kueue does not start without them"
    return ""


class Manager:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: list[str] = []
        self.waits: dict[str, Any] = {}

    def wait_for_pods(self, seconds: float | None, requeues: int | None = None) -> None:
        """Begin again with `waitForPodsReady` of so many seconds, and so many tries of a Workload."""
        strategy = {"backoffBaseSeconds": 1, "backoffMaxSeconds": 2}
        if requeues is not None:
            strategy["backoffLimitCount"] = requeues
        self.waits = {"timeout": f"{seconds:.0f}s", "requeuingStrategy": strategy} if seconds else {}
        self.stop()
        self.start()

    def start(self) -> None:
        with contextlib.suppress(KubeError):  # an earlier module's, whose end takes a moment
            self.cluster.make_namespace("kueue-system")
        health, webhook = free_port(), free_port()
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": webhook},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "featureGates": {"VisibilityOnDemand": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "waitForPodsReady": {"timeout": f"{READY_SECONDS:.0f}s", "blockAdmission": False, **self.waits},
            "integrations": {"frameworks": ["batch/job"], "externalFrameworks": [KIND]},
            "multiKueue": {"externalFrameworks": [{"name": KIND}], "origin": "here"},
        }
        path = self.directory / "kueue.yaml"
        path.write_text(yaml.safe_dump(config))
        try:
            wait_for(lambda: self._runs(path, health), "Kueue's manager is ready", 180)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log[-3000:]}") from None

    @property
    def log(self) -> str:
        path = self.directory / "kueue.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _runs(self, config: Path, health: int) -> bool:
        """Whether the manager answers. Where discovery does not show its kinds yet, it ends, and is started again."""
        if self.process is None or self.process.poll() is not None:
            with (self.directory / "kueue.log").open("ab") as log:
                self.process = subprocess.Popen(
                    [os.environ["ELASTICJOB_KUEUE_MANAGER"], "--config", str(config), "--zap-log-level", "info"],
                    env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "KUEUE_NAMESPACE": "kueue-system"},
                    stdout=log,
                    stderr=log,
                )
        try:
            with socket.create_connection(("127.0.0.1", health), 1) as probe:
                probe.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                return b" 200 " in probe.recv(200)
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            stop_process(self.process)
