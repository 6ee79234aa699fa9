"""The command lines of the control plane, as functions of paths, ports and version.

Two generations of flags must work: flags removed in 1.24 are passed only to older servers. No I/O here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

Version = tuple[int, int]


@dataclass(frozen=True)
class Tuning:
    """Settings that tests and demos may want to differ from those of a production cluster."""

    node_monitor_period: str = "1s"
    node_monitor_grace_period: str = "10s"
    toleration_seconds: int = 300  # default tolerations for not-ready and unreachable nodes
    hpa_sync_period: str = "2s"
    audit: bool = False  # write every request's metadata (of Leases: all) to audit.log
    apiserver_flags: tuple[str, ...] = ()
    controller_manager_flags: tuple[str, ...] = ()
    scheduler_flags: tuple[str, ...] = ()
    crash_backoff: tuple[float, float] = (10.0, 300.0)  # the kubelet's: first and longest delay in seconds
    image_backoff: tuple[float, float] = (10.0, 300.0)
    lease_seconds: float = 1.0  # how often a node renews its Lease
    imports: tuple[str, ...] = ()  # modules that scripts of this interpreter, where they are pods, find imported


@dataclass(frozen=True)
class Layout:
    """The paths, addresses and ports of one cluster."""

    directory: Path
    binaries: Path
    version: Version
    etcd_data: Path
    etcd_port: int
    etcd_peer_port: int
    api_port: int
    own_address: str  # a loopback address that belongs to this cluster alone
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def etcd_pki(self) -> Path:
        """An authority of its own: etcd knows no rights, so nobody but the API server may have its certificate."""
        return self.pki / "etcd"

    @property
    def etcd_server(self) -> str:
        return f"https://127.0.0.1:{self.etcd_port}"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"


def parse_version(text: str) -> Version:
    """`Kubernetes v1.20.2` → (1, 20)."""
    found = re.search(r"v(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"no Kubernetes version in {text!r}")
    return int(found[1]), int(found[2])


def build_etcd_argv(layout: Layout, *, can_skip_fsync: bool) -> list[str]:
    pki = layout.etcd_pki
    client, peer = layout.etcd_server, f"https://127.0.0.1:{layout.etcd_peer_port}"
    argv = [
        str(layout.binaries / "etcd"),
        f"--data-dir={layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--cert-file={pki / 'server.crt'}",
        f"--key-file={pki / 'server.key'}",
        f"--trusted-ca-file={pki / 'ca.crt'}",
        "--client-cert-auth",
        f"--peer-cert-file={pki / 'server.crt'}",
        f"--peer-key-file={pki / 'server.key'}",
        f"--peer-trusted-ca-file={pki / 'ca.crt'}",
        "--peer-client-cert-auth",
        "--logger=zap",
        "--log-level=warn",
        "--snapshot-count=10000",
    ]
    return [*argv, "--unsafe-no-fsync"] if can_skip_fsync else argv


def build_apiserver_argv(layout: Layout) -> list[str]:
    pki, tuning = layout.pki, layout.tuning
    argv = [
        str(layout.binaries / "kube-apiserver"),
        f"--etcd-servers={layout.etcd_server}",
        f"--etcd-cafile={layout.etcd_pki / 'ca.crt'}",
        f"--etcd-certfile={layout.etcd_pki / 'client.crt'}",
        f"--etcd-keyfile={layout.etcd_pki / 'client.key'}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={layout.api_port}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-account-key-file={pki / 'service-account.key'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # a loopback address cannot be an endpoint
        "--allow-privileged=true",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--default-not-ready-toleration-seconds={tuning.toleration_seconds}",
        f"--default-unreachable-toleration-seconds={tuning.toleration_seconds}",
    ]
    if tuning.audit:
        argv += [
            f"--audit-policy-file={layout.directory / 'audit-policy.yaml'}",
            f"--audit-log-path={layout.directory / 'audit.log'}",
            "--audit-log-mode=blocking",
        ]
    return [*argv, *tuning.apiserver_flags]


def build_controller_manager_argv(layout: Layout) -> list[str]:
    pki, tuning = layout.pki, layout.tuning
    argv = [
        str(layout.binaries / "kube-controller-manager"),
        f"--kubeconfig={layout.directory / 'control.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--node-monitor-period={tuning.node_monitor_period}",
        f"--node-monitor-grace-period={tuning.node_monitor_grace_period}",
        f"--horizontal-pod-autoscaler-sync-period={tuning.hpa_sync_period}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
    if layout.version < (1, 24):
        argv.append("--port=0")  # the insecure port would collide between clusters
    return [*argv, *tuning.controller_manager_flags]


def build_scheduler_argv(layout: Layout) -> list[str]:
    argv = [
        str(layout.binaries / "kube-scheduler"),
        f"--config={layout.directory / 'scheduler.json'}",
        "--secure-port=0",
    ]
    if layout.version < (1, 24):
        argv.append("--port=0")
    return [*argv, *layout.tuning.scheduler_flags]


def build_scheduler_config(layout: Layout) -> dict[str, object]:
    """The scheduler's configuration: pods that did not fit are retried after one to two seconds."""
    version = "v1" if layout.version >= (1, 25) else "v1beta2" if layout.version >= (1, 22) else "v1beta1"
    # With --config an old scheduler ignores --port=0 and uses 10251 on all addresses: two clusters would collide.
    insecure = f"{layout.own_address}:20251"
    old = {"healthzBindAddress": insecure, "metricsBindAddress": insecure} if version == "v1beta1" else {}
    return {
        **old,
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(layout.directory / "control.kubeconfig"), "qps": 200, "burst": 400},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "enableProfiling": False,
    }


AUDIT_POLICY: dict[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # With request bodies: they show who held a Lease when another request arrived.
        {"level": "RequestResponse", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata"},
    ],
}
