"""All of ElasticJob: a devcluster with process nodes, the real operator, one ElasticJob.

The operator creates replacements. One cluster serves all runs of a benchmark; each run has its own namespace.
"""

from __future__ import annotations

import atexit
import shlex
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import launchers
from benchmarks.launchers.local import SESSION_ENVIRONMENT, SESSION_SCRIPT
from benchmarks.meter import Meter
from benchmarks.system import JOBS, System
from elasticjob_devcluster import KubeError, NodeSpec
from elasticjob_devcluster.api import kube

_systems: list[System] = []


def find_system() -> System:
    """The only system of this process, started on first use."""
    if not _systems:
        directory = Path(tempfile.mkdtemp(prefix="elasticjob-bench-system-"))
        _systems.append(System(directory, nodes=tuple(NodeSpec(f"node-{number}") for number in range(3))))
        atexit.register(_systems[0].close)
    return _systems[0]


@dataclass
class OnCluster:
    """See the module. A node is the pod with that replica index."""

    name: str = "ours: torchrun, whole operator"
    program: tuple[str, ...] = ("torchrun",)
    script: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    meter: Meter | None = None  # not used: the pods find the hub by the operator's own address
    nodes: set[int] = field(default_factory=set)

    def open(self, job: launchers.Job, wanted: int) -> None:
        self.job, self.wanted = job if self.script is None else replace(job, script=self.script), wanted
        self.system = find_system()
        self.namespace = self.system.make_namespace()
        self.path = f"{JOBS}/namespaces/{self.namespace}/elasticjobs"

    def start_agent(self, node: int) -> float:
        """The first call creates the job with all its first pods; later ones increase the wanted size."""
        began = time.time()
        if not self.nodes:
            self.nodes |= set(range(self.wanted))
            self.system.cluster.kube.request("POST", self.path, self._manifest())
        elif node >= self.wanted:
            self.nodes.add(self.wanted)
            self.wanted += 1
            self._scale()
        return began

    def _manifest(self) -> dict[str, Any]:
        words = [*self.program, *self.job.command("INDEX")]
        command = "exec " + shlex.join(words).replace("INDEX", '"$ELASTICJOB_REPLICA_INDEX"')
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **self.environment}
        environment = [{"name": name, "value": value} for name, value in variables.items()]
        container = {"name": "worker", "image": "none", "command": ["sh", "-c", command], "env": environment}
        policy = {"minReplicas": 1, "maxReplicas": self.job.maximum, "gracefulShutdownTimeoutSeconds": 20}
        return {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "job"},
            "spec": {
                "replicas": self.wanted,
                "elasticPolicy": policy,
                "template": {"spec": {"containers": [container]}},
            },
        }

    def _scale(self) -> None:
        body = {"spec": {"replicas": self.wanted}}
        self.system.cluster.kube.request("PATCH", f"{self.path}/job", body, content_type=kube.MERGE)

    def _pod(self, node: int) -> str:
        return f"job-worker-{node}"

    def kill(self, node: int, number: signal.Signals) -> float:
        began = time.time()
        self.system.cluster.kill_pod(self.namespace, self._pod(node), number)
        return began

    def terminate(self, node: int) -> float:
        """Delete the pod, which sends it SIGTERM."""
        began = time.time()
        self.system.cluster.kube.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{self._pod(node)}")
        return began

    def shrink(self, node: int) -> float:
        began = time.time()
        self.wanted -= 1
        self._scale()
        return began

    def lose_coordinator(self) -> float | None:
        began = time.time()
        self.system.kill_operator()
        time.sleep(1)
        self.system.start_operator()
        return began

    def is_alive(self) -> bool:
        job = self.system.cluster.kube.get(f"{self.path}/job")
        return job is not None and (job.get("status") or {}).get("phase") not in ("Failed", "Succeeded", "Complete")

    def is_node_alive(self, node: int) -> bool:
        """Always true, since the operator replaces lost pods."""
        return True

    def moments(self, event: float) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for path in (f"{self.path}/job", f"/api/v1/namespaces/{self.namespace}"):
            try:
                self.system.cluster.kube.request("DELETE", path)
            except KubeError as error:
                if error.status != 404:
                    raise


def torchrun() -> OnCluster:
    return OnCluster()


def elasticjob_run() -> OnCluster:
    return OnCluster(name="ours: elasticjob-run, whole operator", program=("elasticjob-run",))


def session() -> OnCluster:
    return OnCluster(
        name="ours: session, whole operator",
        program=("elasticjob-run",),
        script=SESSION_SCRIPT,
        environment=SESSION_ENVIRONMENT,
    )
