"""Two replicas of the operator as in the chart: its arguments, its permissions, a Lease, a Service that points to the
leader.

The suite acts as the kubelet and restarts replicas that ended. The processes are on this machine, so the Service is a
relay to the holder of the Lease.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos import stretches
from chaos.hub_relay import HubRelay
from chaos.soak import measure
from chaos.tenants_judge import Exit, Sample
from chart_fixture import container, render
from elasticjob_devcluster import Cluster, KubeError
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import ROOT

SYSTEM, NAME = "elasticjob-system", "elasticjob"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{NAME}"
VALUES = {"images": {"runtime": {"enabled": False}}}  # processes have no images
GRANTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Service")
RESTART_SECONDS = 0.5
LOOK_SECONDS = 0.25
SAMPLE_SECONDS = 1.0
TAIL = 8000  # characters of the log that an end is told with


def install(cluster: Cluster) -> list[str]:
    """Install the chart without its Deployment; return the Deployment's arguments."""
    objects = render(VALUES, namespace=SYSTEM)
    cluster.make_namespace(SYSTEM)
    for raw in objects:
        if raw["kind"] in GRANTS:
            cluster.kube.request("POST", _collection(raw), raw)
    arguments: list[str] = container(objects)["args"]
    return arguments


def _collection(raw: dict[str, Any]) -> str:
    root = f"/apis/{raw['apiVersion']}" if "/" in raw["apiVersion"] else f"/api/{raw['apiVersion']}"
    place = raw["metadata"].get("namespace", "")
    return f"{root}/namespaces/{place}/{raw['kind'].lower()}s" if place else f"{root}/{raw['kind'].lower()}s"


def write_kubeconfig(cluster: Cluster, file: Path) -> None:
    """A kubeconfig for the chart's service account, valid for a day."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kube.request("POST", path, body)["status"]["token"]}
    file.write_text(json.dumps(config))


def die_with_parent() -> None:
    """Let nothing outlive the tests, however they end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Replica:
    """One of the replicas."""

    def __init__(self, directory: Path, name: str, arguments: list[str]) -> None:
        self.name = name
        self.hub_port, self.http_port = free_port(), free_port()
        self.log_file = directory / f"{name}.log"
        self.stretches_file = directory / f"{name}-stretches.jsonl"
        self.asked = False  # whether its end is the suite's doing
        self.paused = False
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._argv = [
            *(sys.executable, "-m", stretches.__name__, str(self.stretches_file), *arguments),
            *("--hub-host", "127.0.0.1", "--hub-port", str(self.hub_port)),
            *("--http-host", "127.0.0.1", "--http-port", str(self.http_port), "--log-format", "human"),
        ]
        path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
        self._env = os.environ | {"POD_NAMESPACE": SYSTEM, "POD_NAME": name, "POD_IP": "10.9.8.7", "PYTHONPATH": path}

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        self.asked, self.paused = False, False
        self.starts += 1
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, stdout=log, stderr=log, env=self._env,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, which takes no lock
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.asked |= number == signal.SIGKILL
            self.paused = number == signal.SIGSTOP or (self.paused and number != signal.SIGCONT)
            self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)


class Replicas:
    """Both replicas, the kubelet, the Service, and the measurements."""

    def __init__(self, cluster: Cluster, directory: Path, *flags: str) -> None:
        self.cluster = cluster
        self.exits: list[Exit] = []
        self.samples: list[Sample] = []
        self.service = HubRelay(0)
        self.service.start()
        url = ("--hub-url", f"wss://127.0.0.1:{self.service.port}")
        arguments = [*install(cluster), *url, "--kubeconfig", str(directory / "kubeconfig"), *flags]
        write_kubeconfig(cluster, directory / "kubeconfig")
        self.members = tuple(Replica(directory, name, arguments) for name in ("a", "b"))
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._keep, self._sample)]

    @contextlib.contextmanager
    def running(self) -> Iterator[Replicas]:
        for member in self.members:
            member.start()
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join(20)
            for member in self.members:
                member.stop()
            self.service.stop()

    @property
    def lease(self) -> dict[str, Any]:
        """The Lease as it is; empty if there is none."""
        return self.cluster.kube.get(LEASE) or {}

    @property
    def leader(self) -> Replica | None:
        """The replica that holds the Lease, according to the API server."""
        holder = str((self.lease.get("spec") or {}).get("holderIdentity") or "")
        return next((m for m in self.members if holder.startswith(f"{m.name}_")), None)

    def _keep(self) -> None:
        """Starts again what has ended, and leads the Service to the leader."""
        while not self._stopped.wait(LOOK_SECONDS):
            for member in self.members:
                code = member.process.poll() if member.process is not None else 0
                if code is not None:
                    self.exits.append(Exit(time.time(), member.name, code, member.asked, member.log[-TAIL:]))
                    time.sleep(RESTART_SECONDS)
                    member.start()
            with contextlib.suppress(KubeError, OSError):
                leader = self.leader
                if leader is not None:
                    self.service.hub_port = leader.hub_port

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            leader = self.service.hub_port
            for member in self.members:
                with contextlib.suppress(OSError, KeyError):  # it has just ended
                    found = measure(member.pid)
                    leads = member.hub_port == leader
                    sample = Sample(time.time(), member.name, member.pid, found["rss"], int(found["fds"]), leads)
                    self.samples.append(sample)


# What happens to a Lease, or to its holder.


def delete_lease(replicas: Replicas) -> None:
    replicas.cluster.kube.request("DELETE", LEASE)


def take_lease(replicas: Replicas) -> None:
    """Another client takes the Lease and never renews it."""
    _write(replicas, {"holderIdentity": "somebody-else", "leaseDurationSeconds": 10})


def corrupt_lease(replicas: Replicas) -> None:
    """Another client writes a renewal in seventy years and the maximum transition counter."""
    far = {"renewTime": "2096-01-01T00:00:00.000000Z", "acquireTime": "2096-01-01T00:00:00.000000Z"}
    _write(
        replicas,
        {"holderIdentity": "\x1b[31mx", "leaseDurationSeconds": 30, "leaseTransitions": 2**31 - 1} | far,
    )


def empty_lease(replicas: Replicas) -> None:
    """Empty the Lease without a release, so that it has no holder."""
    lease = replicas.lease
    replicas.cluster.kube.request("PUT", LEASE, {**lease, "spec": {}})


def _write(replicas: Replicas, spec: dict[str, Any]) -> None:
    body = {"spec": spec}
    replicas.cluster.kube.request("PATCH", LEASE, body, content_type="application/merge-patch+json")


def kill_leader(replicas: Replicas) -> None:
    if replicas.leader is not None:
        replicas.leader.send(signal.SIGKILL)


def kill_follower(replicas: Replicas) -> None:
    leader = replicas.leader
    for member in replicas.members:
        if member is not leader:
            member.send(signal.SIGKILL)
            return


def pause_leader(replicas: Replicas) -> None:
    """Stop the leader for longer than its Lease lasts. It resumes while another one leads."""
    leader = replicas.leader
    if leader is None:
        return
    leader.send(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while replicas.leader is leader and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    finally:
        leader.send(signal.SIGCONT)


LEASE_FAULTS = (kill_leader, delete_lease, pause_leader, take_lease, corrupt_lease, empty_lease, kill_follower)
