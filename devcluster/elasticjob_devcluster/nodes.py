"""The supervisor's side of nodes: each has a container runtime and an agent, two processes that can be killed and
restarted.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from elasticjob_devcluster.config import ClusterConfig, NodeSpec
from elasticjob_devcluster.controlplane.servers import ControlPlane
from elasticjob_devcluster.node.context import Settings
from elasticjob_devcluster.system import addresses, processes
from elasticjob_devcluster.system.relay import Relay


class ProcessNode:
    """A node whose pods are local processes. Other kinds of nodes have the same methods."""

    def __init__(self, config: ClusterConfig, plane: ControlPlane, spec: NodeSpec, address: str) -> None:
        self.spec = spec
        self.config = config
        self.plane = plane
        self.address = address
        self.directory: Path = config.directory / "nodes" / spec.name
        self.relay = Relay("127.0.0.1", plane.layout.api_port)
        self.runtime: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def mark(self) -> str:
        return f"{self.config.id}/{self.spec.name}"

    async def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = self.spec.name
        self.plane.authority.issue(
            f"node-{name}", f"system:node:{name}", organization="system:masters", addresses=(self.address,)
        )
        await self.relay.start()

    def start(self) -> None:
        """Start the parts that do not run."""
        env = processes.base_env() | {
            processes.MARK_CLUSTER: self.config.id,
            processes.MARK_NODE: self.mark,
        }
        if self.runtime is None or self.runtime.poll() is not None:
            (self.directory / "runtime.sock").unlink(missing_ok=True)
            argv = processes.python_argv(
                "elasticjob_devcluster.runtime.server",
                "--dir",
                str(self.directory),
                "--mark",
                self.mark,
                "--mode",
                self.spec.sandbox,
                "--imports",
                *self.config.tuning.imports,
            )
            self.runtime = processes.start(argv, log=self.directory / "runtime.log", env=env)
        if self.agent is None or self.agent.poll() is not None:
            self._settings().save(self.directory / "node.json")
            argv = processes.python_argv("elasticjob_devcluster.node.agent", "--dir", str(self.directory))
            self.agent = processes.start(argv, log=self.directory / "agent.log", env=env)

    def _settings(self) -> Settings:
        tuning, layout, spec = self.config.tuning, self.plane.layout, self.spec
        return Settings(
            name=spec.name,
            address=self.address,
            port=addresses.free_port(self.address),
            server=f"https://127.0.0.1:{self.relay.port}",
            api_host="127.0.0.1",
            api_port=layout.api_port,
            pki=str(layout.pki),
            cluster=self.config.id,
            path=self.config.path,
            version=self.plane.version_text,
            capacity=spec.capacity(),
            labels=dict(spec.labels),
            taints=tuple(dict(t) for t in spec.taints),
            crash_backoff=tuning.crash_backoff,
            image_backoff=tuning.image_backoff,
            lease_seconds=tuning.lease_seconds,
        )

    def stop_agent(self) -> None:
        """Kill the agent; its pods continue."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()

    def kill(self) -> None:
        """Power loss: kill agent, runtime and every process of every pod; the agent first, so that it
        reports nothing.
        """
        for child in (self.agent, self.runtime):
            if child is not None:
                child.send_signal(signal.SIGKILL)
        processes.kill_marked(processes.MARK_NODE, self.mark)
        for child in (self.agent, self.runtime):
            if child is not None:
                child.wait()

    def freeze(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to the node and all its pods: a machine that hangs and recovers."""
        processes.send(processes.find_marked(processes.MARK_NODE, self.mark), number)

    async def close(self) -> None:
        """Stop what the supervisor itself serves for this node."""
        await self.relay.stop()

    async def remove(self) -> None:
        self.kill()
        await self.relay.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def describe(self) -> dict[str, object]:
        return {
            "name": self.spec.name,
            "address": self.address,
            "agent": self.agent is not None and self.agent.poll() is None,
            "runtime": self.runtime is not None and self.runtime.poll() is None,
            "cut": self.relay.is_cut,
        }
