"""The configuration files of a container node. Pure."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from elasticjob_devcluster.containerd.dns import DOMAIN

SANDBOX_IMAGE: Final = "devcluster.local/pause:1"


@dataclass(frozen=True)
class NodeFiles:
    """The configuration of a container node; written by the supervisor, read by the node's first process."""

    name: str
    cluster_id: str
    cluster: int  # the cluster's number in addresses
    number: int  # the node's number in addresses
    directory: str
    binaries: str
    cni: str
    address: str
    dns: str
    server: str
    pki: str
    version: tuple[int, int]
    labels: dict[str, str]
    taints: tuple[dict[str, str], ...]
    max_pods: int

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def socket(self) -> Path:
        return self.path / "containerd.sock"

    @property
    def cgroup(self) -> str:
        return f"/ejdc-{self.cluster_id}/{self.name}"

    def save(self) -> None:
        (self.path / "node.json").write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, directory: Path) -> NodeFiles:
        raw = json.loads((directory / "node.json").read_text())
        return cls(**{**raw, "version": tuple(raw["version"]), "taints": tuple(raw["taints"])})


def build_containerd_config(node: NodeFiles) -> str:
    return f"""version = 2
root = "{node.path / "containerd"}"
state = "{node.path / "run"}"
oom_score = 0
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{node.cni}"
    conf_dir = "{node.path / "cni"}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.path / "opt"}"
"""


def build_cni_config(node: NodeFiles, pod_network: str) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pod_network}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(node.path / "ipam"),
        },
    }
    return {"cniVersion": "0.4.0", "name": "devcluster", "plugins": [bridge]}


def build_kubelet_config(node: NodeFiles) -> dict[str, Any]:
    newer = {"failCgroupV1": False} if node.version >= (1, 31) else {}  # this machine may have no other
    return newer | {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": f"{node.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},  # the API server and the nodes are administrators
        "address": "0.0.0.0",  # noqa: S104 - in the node's own network namespace
        "tlsCertFile": f"{node.pki}/node-{node.name}.crt",
        "tlsPrivateKeyFile": f"{node.pki}/node-{node.name}.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": str(node.path / "resolv.conf"),
        "maxPods": node.max_pods,
        "clusterDNS": [node.dns],
        "clusterDomain": DOMAIN,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 10,
        "syncFrequency": "5s",
        "volumePluginDir": str(node.path / "plugins"),
        "protectKernelDefaults": False,
    }


def build_kubelet_argv(node: NodeFiles) -> list[str]:
    argv = [
        f"{node.binaries}/kubelet",
        f"--config={node.path / 'kubelet.json'}",
        f"--kubeconfig={node.path / 'kubeconfig'}",
        f"--root-dir={node.path / 'kubelet'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--container-runtime-endpoint=unix://{node.socket}",
        "--v=1",
    ]
    if node.version < (1, 27):  # later ones leave the sandbox's image to containerd, and 1.36 knows neither flag
        argv += ["--container-runtime=remote", f"--pod-infra-container-image={SANDBOX_IMAGE}"]
    if node.labels:
        argv.append("--node-labels=" + ",".join(f"{k}={v}" for k, v in sorted(node.labels.items())))
    if node.taints:
        taints = [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in node.taints]
        argv.append("--register-with-taints=" + ",".join(taints))
    return argv


def build_proxy_config(node: NodeFiles) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(node.path / "kubeconfig")},
        "hostnameOverride": node.name,
        "mode": "iptables",
        # A reply between two pods on one bridge would take another path than the request.
        "iptables": {"masqueradeAll": True, "minSyncPeriod": "0s", "syncPeriod": "10s"},
        # Leave the machine's own connection tracking unchanged.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": f"{node.address}:10256",
        "metricsBindAddress": f"{node.address}:10249",
    }


def build_kubeconfig(node: NodeFiles, read: Any) -> dict[str, Any]:
    """`read` returns the bytes of a file; the server's name is one that its certificate contains."""

    def embed(name: str) -> str:
        return base64.b64encode(read(f"{node.pki}/{name}")).decode()

    user = f"node-{node.name}"
    cluster = {
        "server": node.server,
        "certificate-authority-data": embed("ca.crt"),
        "tls-server-name": "kubernetes",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "clusters": [{"name": "devcluster", "cluster": cluster}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": embed(f"{user}.crt"),
                    "client-key-data": embed(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "node", "context": {"cluster": "devcluster", "user": user}}],
    }
