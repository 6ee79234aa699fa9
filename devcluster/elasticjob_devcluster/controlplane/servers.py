"""etcd, API server, controller manager and scheduler of one cluster: their files, their processes, their readiness."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from elasticjob_devcluster import flags
from elasticjob_devcluster.config import ADMINISTRATORS, KUBELET_CLIENT, ClusterConfig
from elasticjob_devcluster.controlplane.certs import Authority, make_service_account_key, write_secret
from elasticjob_devcluster.system import addresses, processes

READY_SECONDS: Final = 90.0
BIND_ATTEMPTS: Final = 3
BIND_ERRORS: Final = ("address already in use", "bind: address")


class StartFailed(Exception):  # noqa: N818 - says what happened
    """A part of the control plane did not start; the message contains the end of its log."""


class PortTaken(StartFailed):
    """Another process took a port between its selection and its use: retry with other ports."""


class ControlPlane:
    def __init__(self, config: ClusterConfig, own_address: str) -> None:
        self.own_address = own_address
        self.config = config
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.authority = Authority(config.directory / "pki")
        self.version_text = _run([str(config.binaries / "kube-apiserver"), "--version"]).split()[-1]
        self._skip_fsync = "unsafe-no-fsync" in _run([str(config.binaries / "etcd"), "--help"])
        self.layout = self._new_layout()
        self._tls: ssl.SSLContext | None = None
        (config.directory / "logs").mkdir(exist_ok=True)

    def _new_layout(self) -> flags.Layout:
        return flags.Layout(
            directory=self.config.directory,
            binaries=self.config.binaries,
            version=flags.parse_version(self.version_text),
            etcd_data=self.config.etcd_data,
            etcd_port=addresses.free_port(),
            etcd_peer_port=addresses.free_port(),
            api_port=addresses.free_port(),
            own_address=self.own_address,
            tuning=self.config.tuning,
        )

    def prepare(self) -> None:
        """Create keys, certificates and files that do not depend on ports."""
        names = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")
        self.authority.issue("apiserver", "kube-apiserver", addresses=names)
        self.authority.issue("admin", "devcluster-admin", organization=ADMINISTRATORS)
        self.authority.issue("control", "devcluster-control-plane", organization=ADMINISTRATORS)
        self.authority.issue("kubelet-client", KUBELET_CLIENT, organization=ADMINISTRATORS)
        etcd = Authority(self.layout.etcd_pki)
        etcd.issue("server", "etcd", addresses=("127.0.0.1",))
        etcd.issue("client", "kube-apiserver")
        make_service_account_key(self.layout.pki / "service-account.key")
        policy = json.dumps(flags.AUDIT_POLICY)
        (self.config.directory / "audit-policy.yaml").write_text(policy)

    async def start(self) -> None:
        """Start all servers; replaces ports that were taken meanwhile. Raises StartFailed."""
        self.prepare()
        for attempt in range(BIND_ATTEMPTS):
            try:
                await self._start_once()
                return
            except PortTaken:
                if attempt == BIND_ATTEMPTS - 1:
                    raise
                self.stop()
                self.layout = self._new_layout()

    async def _start_once(self) -> None:
        layout = self.layout
        write_kubeconfig(layout.kubeconfig, layout, "admin")
        write_kubeconfig(layout.directory / "control.kubeconfig", layout, "control")
        scheduler = json.dumps(flags.build_scheduler_config(layout))
        (layout.directory / "scheduler.json").write_text(scheduler)
        self._spawn("etcd", flags.build_etcd_argv(layout, can_skip_fsync=self._skip_fsync))
        self._spawn("kube-apiserver", flags.build_apiserver_argv(layout))
        await self.wait_ready()
        self._spawn("kube-controller-manager", flags.build_controller_manager_argv(layout))
        self._spawn("kube-scheduler", flags.build_scheduler_argv(layout))

    def _spawn(self, name: str, argv: list[str]) -> None:
        env = processes.base_env() | {processes.MARK_CLUSTER: self.config.id}
        self.children[name] = processes.start(argv, log=self.log_path(name), env=env)

    def log_path(self, name: str) -> Path:
        return self.config.directory / "logs" / f"{name}.log"

    async def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not await self._answers("/readyz"):
            for name in ("etcd", "kube-apiserver"):
                self._raise_if_dead(name)
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"the API server is not ready after {READY_SECONDS:.0f} s\n{self._tail('kube-apiserver')}"
                )
            await asyncio.sleep(0.05)

    def _raise_if_dead(self, name: str) -> None:
        code = self.children[name].poll()
        if code is None:
            return
        text = self._tail(name)
        kind = PortTaken if any(error in text for error in BIND_ERRORS) else StartFailed
        raise kind(f"{name} ended with exit code {code}\n{text}")

    def _tail(self, name: str) -> str:
        lines = self.log_path(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])

    async def _answers(self, path: str) -> bool:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
            self._tls.load_cert_chain(self.layout.pki / "admin.crt", self.layout.pki / "admin.key")
        try:
            async with asyncio.timeout(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.layout.api_port, ssl=self._tls)
                with contextlib.closing(writer):
                    writer.write(f"GET {path} HTTP/1.0\r\nHost: kubernetes\r\n\r\n".encode())
                    return b" 200 " in await reader.readline()
        except (OSError, TimeoutError):
            return False

    async def restart(self, name: str) -> None:
        """Kill one server and start it again on the same ports."""
        builders = {
            "etcd": lambda: flags.build_etcd_argv(self.layout, can_skip_fsync=self._skip_fsync),
            "kube-apiserver": lambda: flags.build_apiserver_argv(self.layout),
            "kube-controller-manager": lambda: flags.build_controller_manager_argv(self.layout),
            "kube-scheduler": lambda: flags.build_scheduler_argv(self.layout),
        }
        if name not in builders:
            raise ValueError(f"no component {name!r}: choose one of {', '.join(builders)}")
        self.children[name].kill()
        self.children[name].wait()
        self._spawn(name, builders[name]())
        await self.wait_ready()
        for other in ("kube-controller-manager", "kube-scheduler"):
            if self.children[other].poll() is not None:  # they exit while the API server is unavailable
                self._spawn(other, builders[other]())

    def revive(self) -> None:
        """Restart controllers that ended on their own, like static pods."""
        for name, build in (
            ("kube-controller-manager", flags.build_controller_manager_argv),
            ("kube-scheduler", flags.build_scheduler_argv),
        ):
            child = self.children.get(name)
            if child is not None and child.poll() is not None:
                self._spawn(name, build(self.layout))

    def stop(self) -> None:
        """Stop the controllers first, so that they do not log errors about a missing server."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            child = self.children.pop(name, None)
            if child is not None:
                child.send_signal(signal.SIGKILL)
                child.wait()
        shutil.rmtree(self.config.etcd_data, ignore_errors=True)


def write_kubeconfig(path: Path, layout: flags.Layout, user: str) -> None:
    """A self-contained kubeconfig, which can be copied anywhere on this machine."""

    def embed(name: str) -> str:
        return base64.b64encode((layout.pki / name).read_bytes()).decode()

    cluster = {"server": layout.server, "certificate-authority-data": embed("ca.crt")}
    credentials = {"client-certificate-data": embed(f"{user}.crt"), "client-key-data": embed(f"{user}.key")}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "devcluster",
        "clusters": [{"name": "devcluster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": user}}],
    }
    write_secret(path, json.dumps(config, indent=1).encode())


def _run(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return result.stdout + result.stderr
