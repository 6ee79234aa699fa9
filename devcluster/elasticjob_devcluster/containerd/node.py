"""The supervisor's side of a container node; it has the methods of a process node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from elasticjob_devcluster.api.kube import Kube, KubeError
from elasticjob_devcluster.config import ClusterConfig, NodeSpec
from elasticjob_devcluster.containerd import network, sweep, tools
from elasticjob_devcluster.containerd.boot import OFF
from elasticjob_devcluster.containerd.dns import ClusterDns
from elasticjob_devcluster.containerd.files import NodeFiles
from elasticjob_devcluster.controlplane.servers import ControlPlane
from elasticjob_devcluster.system import processes
from elasticjob_devcluster.system.relay import Relay


class ContainerNode:
    """A node whose pods are containers."""

    def __init__(self, config: ClusterConfig, plane: ControlPlane, spec: NodeSpec, cluster: int, number: int) -> None:
        if why := tools.why_unavailable():
            raise ValueError(why)
        self.spec = spec
        self.config = config
        self.plane = plane
        self.cluster, self.number = cluster, number
        self.address = network.node_address(cluster, number)
        self.directory: Path = config.directory / "nodes" / spec.name
        self.relay = Relay("127.0.0.1", plane.layout.api_port, listen=network.gateway(cluster))
        self.boot: subprocess.Popen[bytes] | None = None
        self._kube: Kube | None = None  # of the cluster's DNS, which the first node keeps
        self._dns: ClusterDns | None = None

    @property
    def mark(self) -> str:
        return f"{self.config.id}/{self.spec.name}"

    async def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.number == 0:
            network.create_bridge(self.cluster)
        name = self.spec.name
        self.plane.authority.issue(
            f"node-{name}", f"system:node:{name}", organization="system:masters", addresses=(self.address,)
        )
        await self.relay.start()
        self._files().save()
        if self.number == 0:
            self._point_service()
            self._kube = Kube(self.plane.layout.kubeconfig)
            self._dns = ClusterDns(self._kube.get)
            await self._dns.start(network.gateway(self.cluster))

    def _files(self) -> NodeFiles:
        layout, cni = self.plane.layout, tools.cni_directory()
        assert cni is not None, "checked by why_unavailable"
        return NodeFiles(
            name=self.spec.name,
            cluster_id=self.config.id,
            cluster=self.cluster,
            number=self.number,
            directory=str(self.directory),
            binaries=str(self.config.binaries),
            cni=str(cni),
            address=self.address,
            dns=network.gateway(self.cluster),
            server=f"https://{network.gateway(self.cluster)}:{self.relay.port}",
            pki=str(layout.pki),
            version=layout.version,
            labels=dict(self.spec.labels),
            taints=tuple(dict(t) for t in self.spec.taints),
            max_pods=self.spec.pods,
        )

    def _point_service(self) -> None:
        """Make the Service `kubernetes` reach the API server, which cannot register a loopback address itself."""
        subset = {
            "addresses": [{"ip": network.gateway(self.cluster)}],
            "ports": [{"name": "https", "port": self.relay.port, "protocol": "TCP"}],
        }
        endpoints = {"metadata": {"name": "kubernetes"}, "subsets": [subset]}
        kube = Kube(self.plane.layout.kubeconfig)
        try:
            kube.request("POST", "/api/v1/namespaces/default/endpoints", endpoints)
        except KubeError as error:
            if error.status != 409:
                raise
            kube.request("PUT", "/api/v1/namespaces/default/endpoints/kubernetes", endpoints)
        finally:
            kube.close()

    def start(self) -> None:
        """Start the parts that do not run."""
        (self.directory / OFF).unlink(missing_ok=True)
        if self.boot is not None and self.boot.poll() is None:
            return
        env = processes.base_env() | {processes.MARK_CLUSTER: self.config.id, processes.MARK_NODE: self.mark}
        inner = processes.python_argv("elasticjob_devcluster.containerd.boot", "--dir", str(self.directory))
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *inner]
        self.boot = processes.start(argv, log=self.directory / "agent.log", env=env)

    def stop_agent(self) -> None:
        """Kill the kubelet; its pods continue."""
        (self.directory / OFF).touch()

    def kill(self) -> None:
        """Power loss: the kernel ends all processes of the namespaces together with the first one."""
        if self.boot is not None:
            self.boot.kill()
            self.boot.wait()
        processes.kill_marked(processes.MARK_NODE, self.mark)
        sweep.remove_cgroups(self.config.id, self.spec.name)
        for state in ("run", "kubelet", "ipam"):  # state that a machine loses with its memory, or that would be stale
            shutil.rmtree(self.directory / state, ignore_errors=True)

    def freeze(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to the node and all its pods: a machine that hangs and recovers."""
        marked = processes.find_marked(processes.MARK_NODE, self.mark)
        processes.send({*marked, *processes.descendants(marked)}, number)

    async def close(self) -> None:
        """Stop what the supervisor itself serves for this node."""
        await self.relay.stop()
        if self._dns is not None and self._kube is not None:
            await self._dns.stop()
            self._kube.close()

    async def remove(self) -> None:
        self.kill()
        await self.relay.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def load_image(self, archive: str) -> None:
        """Import an image archive (docker or OCI) for the pods of this node."""
        argv = [
            "ctr",
            "--address",
            str(self.directory / "containerd.sock"),
            "-n",
            "k8s.io",
            "images",
            "import",
            archive,
        ]
        # Unpacking mounts file systems, which must happen in the node's namespace, so the server does it.
        result = subprocess.run(
            argv, capture_output=True, text=True, env={"PATH": tools.PATH}, timeout=600, check=False
        )
        if result.returncode != 0:
            raise ValueError(f"{archive}: {result.stderr.strip() or result.stdout.strip()}")

    def describe(self) -> dict[str, object]:
        alive = self.boot is not None and self.boot.poll() is None
        return {
            "name": self.spec.name,
            "address": self.address,
            "agent": alive and not (self.directory / OFF).exists(),
            "runtime": alive,
            "cut": self.relay.is_cut,
        }
