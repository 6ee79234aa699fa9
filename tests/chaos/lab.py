"""One job's scenario under faults: a namespace, a proxy, and an operator that is restarted when it was killed.

A `Lane` is a namespace with its own proxy and operator; several run concurrently against one cluster. The end states of
a scenario are compared without the parts that may differ: times, names of nodes, UIDs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.fault_proxy import FaultProxy
from chaos.history import Line, read_history
from elasticjob_devcluster import Cluster, KubeError
from elasticjob_devcluster.system.addresses import free_port
from operator_fixture import Jobs, light_spec

ROOT = Path(__file__).resolve().parents[2]


class Zygote:
    """Forks operators."""

    def __init__(self, package: Path | None = None) -> None:
        env = dict(os.environ) | ({"ELASTICJOB_PACKAGE": str(package)} if package else {})
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True,
        )  # fmt: skip

    def fork(self, argv: list[str], log: Path) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"argv": argv, "log": str(log)}) + "\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        assert said.strip(), "the zygote is alive"
        return int(said)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class ForkedOperator:
    """An operator that is restarted whenever it ends, like by a kubelet."""

    def __init__(self, zygote: Zygote, directory: Path, argv: list[str]) -> None:
        self._zygote, self._argv = zygote, argv
        self.log_file = directory / f"operator-{secrets.token_hex(3)}.log"
        self.starts = 0
        self.kills = 0
        self.crashes = 0  # ends that nobody asked for
        self.on_restart: Callable[[], None] = lambda: None
        self.restart_delay = 0.0
        self._stopped = threading.Event()
        self._fd = -1
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    @property
    def pid(self) -> int:
        return self._pid

    def _keep(self) -> None:
        while not self._stopped.is_set():
            self._asked = False
            self._pid = self._zygote.fork(self._argv, self.log_file)
            try:
                self._fd = os.pidfd_open(self._pid)
            except ProcessLookupError:
                self.crashes += 1
                continue
            self.starts += 1
            select.select([self._fd], [], [])
            os.close(self._fd)
            self._fd = -1
            if self._stopped.is_set():
                return
            if not self._asked:
                self.crashes += 1
                time.sleep(0.5)
            time.sleep(self.restart_delay)
            self.on_restart()

    def kill(self) -> None:
        """Send SIGKILL, without waiting."""
        self._asked = True
        self.kills += 1
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError, OSError):
                signal.pidfd_send_signal(self._fd, number)

    def stop(self) -> None:
        """Stop for good."""
        self._stopped.set()
        for _ in range(100):
            self._send(signal.SIGKILL)
            self._thread.join(0.1)
            if not self._thread.is_alive():
                return


@dataclass
class Lane:
    """A namespace and its content during one scenario."""

    cluster: Cluster
    zygote: Zygote
    directory: Path
    namespace: str
    flags: tuple[str, ...] = ()
    told: int = 0

    @contextlib.contextmanager
    def open(self, *flags: str, hub_port: int = 0, hub_url: str = "") -> Iterator[Stage]:
        """The stage for one scenario, with a running operator."""
        self.told += 1
        directory = self.directory / f"{self.namespace}-{self.told}"
        directory.mkdir()
        proxy = FaultProxy(self.cluster.kubeconfig, directory)
        proxy.start()
        port = hub_port or free_port()
        argv = [
            *("run", "--kubeconfig", str(proxy.own_kubeconfig), "--namespace", self.namespace),
            *("--hub-host", "127.0.0.1", "--hub-port", str(port), "--http-host", "127.0.0.1", "--http-port", "0"),
            *("--no-leader-election", "--stable-seconds", "1", *self.flags, *flags),
        ]
        if hub_url:
            argv += ["--hub-url", hub_url]
        name = f"story{self.told:04}"
        stage = Stage(Jobs(self.cluster, self.namespace), name, proxy, directory)
        try:
            stage.operator = ForkedOperator(self.zygote, directory, argv)
            proxy.on_kill = stage.operator.kill
            yield stage
        finally:
            stage.operator.stop()
            proxy.stop()
            stage.clear()


@dataclass
class Stage:
    """The environment of one scenario."""

    jobs: Jobs
    name: str
    proxy: FaultProxy
    directory: Path
    operator: ForkedOperator = field(init=False)

    @property
    def log_file(self) -> Path:
        return self.directory / "history.jsonl"

    def history(self) -> list[Line]:
        return read_history(self.log_file)

    def spec(self, *arguments: str, **changes: Any) -> dict[str, Any]:
        """A spec of light agents that write their history."""
        spec = light_spec(*arguments, **changes)
        spec["template"]["spec"]["containers"][0]["env"] = [{"name": "LIGHT_LOG", "value": str(self.log_file)}]
        return spec

    def look(self) -> dict[str, Any]:
        """The end state of the scenario, without the parts that may differ between runs."""
        job = self.jobs.get(self.name)
        left = {"job": normalize_job(job), "pods": self._pods(job), "children": self._children(job)}
        renamed: dict[str, Any] = json.loads(json.dumps(left).replace(self.name, "JOB"))
        return renamed

    def _pods(self, job: dict[str, Any]) -> list[Any]:
        members = [m["uid"] for m in job.get("status", {}).get("rendezvous", {}).get("members", [])]
        return sorted(normalize_pod(p, members) for p in self.jobs.pods(self.name))

    def _children(self, job: dict[str, Any]) -> list[str]:
        found = []
        for group, plural in CHILDREN:
            path = f"{group}/namespaces/{self.jobs.namespace}/{plural}"
            query = f"?labelSelector=elasticjob.dev/job-name={self.name}"
            for item in self.jobs.kube.request("GET", path + query)["items"]:
                owners = [o["uid"] == job.get("metadata", {}).get("uid") for o in item["metadata"]["ownerReferences"]]
                found.append(f"{plural}/{item['metadata']['name']}/{'ours' if all(owners) else 'orphan'}")
        return sorted(found)

    def clear(self) -> None:
        """Delete everything at once, without waiting."""
        with contextlib.suppress(KubeError):
            self.jobs.delete(self.name)
        for pod in self.jobs.pods(self.name):
            path = f"/api/v1/namespaces/{self.jobs.namespace}/pods/{pod['metadata']['name']}"
            with contextlib.suppress(KubeError):
                self.jobs.kube.request("DELETE", path, {"gracePeriodSeconds": 0})


CHILDREN = (
    ("/api/v1", "services"),
    ("/api/v1", "configmaps"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
)


def normalize_job(job: dict[str, Any]) -> dict[str, Any]:
    """The part that must be equal in every run of a scenario."""
    status = job.get("status", {})
    world = status.get("rendezvous", {})
    restarts = status.get("restarts", {})
    failure = status.get("lastFailure", {})
    conditions = {c["type"]: (c["status"], c.get("reason")) for c in status.get("conditions", [])}
    for passing in ("Degraded", "Reconciling", "Stalled"):
        if conditions.get(passing, ("",))[0] == "False":
            del conditions[passing]  # whether a passing trouble was seen depends on when one looks
    return {
        "exists": bool(job),
        "phase": status.get("phase"),
        "conditions": conditions,
        "replicas": (job.get("spec", {}).get("replicas"), status.get("replicas", 0), status.get("readyReplicas", 0)),
        "world": (world.get("worldSize"), [m["rank"] for m in world.get("members", [])]),
        "restarts": (restarts.get("total", 0), restarts.get("user", 0)),
        "failure": failure.get("exitCode"),  # its words say the rank only where the pod's end was seen in time
        "finalizers": job.get("metadata", {}).get("finalizers"),
    }


def normalize_pod(pod: dict[str, Any], members: list[str]) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    place = "member" if metadata["uid"] in members else "outside"
    return (pod["status"].get("phase", ""), place, "going" if metadata.get("deletionTimestamp") else "there")


def make_lane(cluster: Cluster, zygote: Zygote, directory: Path, *flags: str) -> Lane:
    namespace = f"chaos-{secrets.token_hex(3)}"
    cluster.make_namespace(namespace)
    return Lane(cluster, zygote, directory, namespace, flags)
