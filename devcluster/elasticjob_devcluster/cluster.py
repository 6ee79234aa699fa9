"""The cluster as a Python object: start it, use it, inject faults, stop it. Synchronous, for tests, demos and the
command line.

`Cluster.start` creates a cluster that ends with the calling process, however that ends. `Cluster.attach` connects to a
running one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from elasticjob_devcluster.api import drain, readiness
from elasticjob_devcluster.api.kube import MERGE, Kube, KubeError
from elasticjob_devcluster.config import ClusterConfig, NodeSpec, default_directory, temporary_directory
from elasticjob_devcluster.containerd.devices import advertise_devices
from elasticjob_devcluster.containerd.tools import why_unavailable
from elasticjob_devcluster.controlplane import binaries
from elasticjob_devcluster.controlplane.binaries import BinariesUnavailable
from elasticjob_devcluster.flags import Tuning
from elasticjob_devcluster.state import ClusterError, is_alive, is_running, read_state, refuse_if_used, wait_for_phase
from elasticjob_devcluster.system import processes
from elasticjob_devcluster.system.sockets import connect_unix

STOP_SECONDS: Final = 30.0
LOAD_SECONDS: Final = 600.0  # gigabytes, unpacked on each node
DEFAULT_NODES: Final = (NodeSpec("node-0", gpus=2), NodeSpec("node-1", gpus=2), NodeSpec("node-2", gpus=2))


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        state = read_state(directory)
        self.id: str = state["id"]
        self.server: str = state["server"]
        self.version: str = state["version"]
        self.kubeconfig = Path(state["kubeconfig"])
        self.kube = Kube(self.kubeconfig)
        self._pid: int = state["pid"]
        self._supervisor: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        nodes: Sequence[NodeSpec] = DEFAULT_NODES,
        *,
        directory: Path | None = None,
        path_prepend: Sequence[str | Path] = (),
        tuning: Tuning | None = None,
        owned: bool = True,
        assets: Path | None = None,
        keep_directory: bool = False,
        wait: bool = True,
    ) -> Cluster:
        """Start a cluster and wait until its nodes are ready. Raises BinariesUnavailable or ClusterError."""
        containers = [spec for spec in nodes if spec.runtime == "containerd"]
        if containers and (why := why_unavailable()):
            raise BinariesUnavailable(why)
        wanted = binaries.SERVERS + (binaries.NODE_PROGRAMS if containers else ())
        found = assets or binaries.find_or_build(wanted)
        directory = (directory or temporary_directory()).absolute()
        refuse_if_used(directory)
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)  # it holds keys, Secrets and logs, and is empty until now
        config = ClusterConfig(
            id=secrets.token_hex(4),
            directory=directory,
            binaries=found,
            path=_container_path(path_prepend),
            nodes=tuple(nodes),
            tuning=tuning or Tuning(),
            owner=os.getpid() if owned else 0,
            keep_directory=keep_directory,
        )
        argv = processes.python_argv("elasticjob_devcluster.supervisor", "--config", str(config.save()))
        env = processes.base_env() | {processes.MARK_CLUSTER: config.id}
        with (directory / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True, cwd=directory
            )
        try:
            wait_for_phase(directory, supervisor)
            cluster = cls(directory)
            cluster._supervisor = supervisor
            if wait:
                cluster.wait_nodes_ready([n.name for n in nodes])
                for spec in containers:
                    advertise_devices(cluster.kube, spec)
        except BaseException:
            supervisor.terminate()
            supervisor.wait()
            raise
        return cluster

    @classmethod
    def attach(cls, directory: Path | str | None = None) -> Cluster:
        """The running cluster in this directory."""
        directory = Path(directory or default_directory()).absolute()
        if not is_running(directory):
            raise ClusterError(f"no devcluster runs in {directory}: start one with `elasticjob-devcluster up`")
        return cls(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop everything; no process or file is left."""
        with contextlib.suppress(ClusterError, OSError):
            self._command(op="stop")
        deadline = time.monotonic() + STOP_SECONDS
        while is_alive(self._pid) and time.monotonic() < deadline:
            if self._supervisor is not None:
                self._supervisor.poll()
            time.sleep(0.02)
        processes.kill_marked(processes.MARK_CLUSTER, self.id)
        if self._supervisor is not None:
            self._supervisor.wait(timeout=STOP_SECONDS)
        config = self.directory / "config.json"
        keep = config.exists() and json.loads(config.read_text())["keep_directory"]
        while not keep and self.directory.exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # the watchdog removes it
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Disconnect from the cluster without stopping it."""
        self.kube.close()

    # Nodes and faults

    def add_node(self, spec: NodeSpec, *, wait: bool = True) -> None:
        self._command(op="add-node", spec=asdict(spec))
        if wait:
            self.wait_nodes_ready([spec.name])

    def remove_node(self, name: str) -> None:
        """Remove the machine for good, and its Node object."""
        self._command(op="remove-node", name=name)
        with contextlib.suppress(KubeError):
            self.kube.request("DELETE", f"/api/v1/nodes/{name}")

    def kill_node(self, name: str) -> None:
        """Power loss: the node and every process of its pods die at once, without any report."""
        self._node(name, "kill")

    def restart_node(self, name: str, *, wait: bool = True) -> None:
        """Power loss if it is running, then a fresh boot."""
        self._node(name, "kill")
        self.start_node(name, wait=wait)

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Start the parts of a node that do not run, after `kill_node` or `stop_agent`."""
        self._node(name, "start")
        if wait:
            self.wait_nodes_ready([name])

    def stop_agent(self, name: str) -> None:
        """Kill only the node's agent, like a crashed kubelet; its pods continue."""
        self._node(name, "stop-agent")

    def pause_node(self, name: str) -> None:
        """Send SIGSTOP to the node and all its pods: a machine that hangs."""
        self._node(name, "pause")

    def resume_node(self, name: str) -> None:
        self._node(name, "resume")

    def cut(self, name: str) -> None:
        """Partition the node's agent from the API server. docs/devcluster.md lists what stays connected."""
        self._node(name, "cut")

    def heal(self, name: str) -> None:
        self._node(name, "heal")

    def restart_apiserver(self) -> None:
        self._command(op="restart", component="kube-apiserver")

    def restart_etcd(self) -> None:
        self._command(op="restart", component="etcd")

    def cordon(self, name: str, *, on: bool = True) -> None:
        body = {"spec": {"unschedulable": on or None}}
        self.kube.request("PATCH", f"/api/v1/nodes/{name}", body, content_type=MERGE)

    def uncordon(self, name: str) -> None:
        self.cordon(name, on=False)

    def taint(self, name: str, key: str, value: str = "", effect: str = "NoSchedule", *, remove: bool = False) -> None:
        drain.set_taint(self.kube, name, {"key": key, "value": value, "effect": effect}, remove=remove)

    def drain(self, name: str, *, timeout: float = 60.0) -> None:
        """Cordon, then evict every pod like `kubectl drain`: budgets are respected. Raises DrainTimeout."""
        self.cordon(name)
        drain.drain(self.kube, name, timeout=timeout)

    # Pods

    def pod_pids(self, namespace: str, name: str) -> list[int]:
        """Every process of the pod's containers, the first process of each container first."""
        pod = self.kube.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        pids: list[int] = []
        for status in statuses:
            kind, _, container = (status.get("containerID") or "").partition("://")
            if container and "running" in (status.get("state") or {}):
                if kind == "process":
                    pids += sorted(processes.find_marked(processes.MARK_CONTAINER, container))
                else:
                    pids += sorted(processes.find_in_cgroup(container))
        return pids

    def kill_pod(self, namespace: str, name: str, number: int = signal.SIGKILL) -> None:
        """Signal every process of the pod, like an OOM kill or a crash; the pod object stays."""
        processes.send(self.pod_pids(namespace, name), number)

    def make_namespace(self, name: str, timeout: float = 60.0) -> None:
        """Create a namespace, and wait until the server accepts pods there.

        It rejects them until the namespace has its service account (and, before 1.24, the account's token).
        """
        readiness.make_namespace(self.kube, name, timeout)

    def load_image(self, archive: Path) -> None:
        """Import an image archive on every node that runs images."""
        self._command(LOAD_SECONDS, op="load-image", archive=str(archive.absolute()))

    def pause_pod(self, namespace: str, name: str) -> None:
        self.kill_pod(namespace, name, signal.SIGSTOP)

    def resume_pod(self, namespace: str, name: str) -> None:
        self.kill_pod(namespace, name, signal.SIGCONT)

    def logs(self, namespace: str, name: str, container: str | None = None, *, previous: bool = False) -> str:
        query = "?" + "&".join([f"container={container}"] * (container is not None) + ["previous=true"] * previous)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log{query}"
        return self.kube.raw("GET", path).decode(errors="replace")

    # Waiting

    def wait_nodes_ready(self, names: Sequence[str], timeout: float = 60.0) -> None:
        missing = readiness.wait_for_nodes(self.kube, names, timeout)
        if missing:
            raise ClusterError(
                f"nodes {', '.join(missing)} are not ready after {timeout:.0f} s: "
                f"see {self.directory}/nodes/*/agent.log"
            )

    def node_ready(self, name: str) -> bool:
        return readiness.is_node_ready(self.kube, name)

    def status(self) -> dict[str, Any]:
        return {**read_state(self.directory), **self._command(op="status")}

    def _node(self, name: str, action: str) -> None:
        self._command(op="node", name=name, action=action)

    def _command(self, seconds: float = 60, /, **request: Any) -> Any:
        with connect_unix(self.directory / "control.sock", timeout=seconds) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
        if not line:
            raise ClusterError("the cluster's supervisor ended")
        reply = json.loads(line)
        if "error" in reply:
            raise ClusterError(reply["error"])
        return reply["ok"]


def _container_path(prepend: Sequence[str | Path]) -> str:
    own = str(Path(sys.executable).parent)
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ":".join([*(str(p) for p in prepend), own, system])
