"""The first process of a container node. `unshare` starts it in separate mount and process namespaces; it creates the
network namespace, prepares the node and keeps its programs running. When it ends, the kernel ends all other processes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from elasticjob_devcluster.containerd import files, network
from elasticjob_devcluster.containerd.files import NodeFiles
from elasticjob_devcluster.containerd.pause import write_pause_image
from elasticjob_devcluster.containerd.tools import CGROUPS, PATH

CLONE_NEWNET: Final = 0x40000000
RUNTIME_SECONDS: Final = 60.0
OFF: Final = "kubelet.off"  # while this file exists, no kubelet runs


def join_network(node: NodeFiles) -> None:
    """Create a network namespace with a link to the cluster's bridge."""
    host = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.set_inheritable(host, True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    link = f"ejv{node.cluster}-{node.number}"
    bridge = network.bridge_name(node.cluster)
    script = (
        f"ip link del {link} 2>/dev/null; ip link add {link} type veth peer name eth0 netns {os.getpid()}"
        f" && ip link set {link} master {bridge} up"
    )
    subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{host}", "sh", "-c", script],
        check=True,
        pass_fds=(host,),
        env={"PATH": PATH},
        timeout=30,
    )
    os.close(host)
    network.run("ip", "link", "set", "lo", "up")
    network.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
    network.run("ip", "link", "set", "eth0", "up")
    network.run("ip", "route", "add", "default", "via", network.gateway(node.cluster))
    for pods, via in network.routes(node.cluster, node.number):
        network.run("ip", "route", "add", pods, "via", via)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def mount_private(node: NodeFiles) -> None:
    """Mount tmpfs where the node's programs write outside of their directory, visible only here."""
    for place in ("/run", "/var/lib", "/var/log"):
        network.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", place)
    network.run("mount", "-t", "sysfs", "-o", "ro", "sysfs", "/mnt")  # fails here if the namespace lacks the permission
    network.run("umount", "/mnt")
    logs = node.path / "pods"
    logs.mkdir(exist_ok=True)
    Path("/var/log/pods").mkdir()
    network.run("mount", "--bind", str(logs), "/var/log/pods")
    for place in ("/var/lib/cni", "/var/lib/kubelet", "/run/netns"):
        Path(place).mkdir(parents=True, exist_ok=True)


def make_cgroups(node: NodeFiles) -> None:
    """Create the kubelet's root in every hierarchy, as it requires; a new cpuset must be filled explicitly."""
    for hierarchy in CGROUPS.iterdir():
        if not (hierarchy / "cgroup.procs").exists() or hierarchy.name == "unified":
            continue
        place = hierarchy
        for part in node.cgroup.strip("/").split("/"):
            parent, place = place, place / part
            place.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (place / name).exists() and not (place / name).read_text().strip():
                    (place / name).write_text((parent / name).read_text())


def write_files(node: NodeFiles) -> None:
    for directory in ("cni", "plugins", "ipam", "kubelet", "opt"):
        (node.path / directory).mkdir(exist_ok=True)
    pods = network.pod_network(node.cluster, node.number)
    texts = {
        "containerd.toml": files.build_containerd_config(node),
        "kubelet.json": json.dumps(files.build_kubelet_config(node), indent=1),
        "proxy.json": json.dumps(files.build_proxy_config(node), indent=1),
        "kubeconfig": json.dumps(files.build_kubeconfig(node, lambda name: Path(name).read_bytes())),
        "cni/10-devcluster.conflist": json.dumps(files.build_cni_config(node, pods)),
        "resolv.conf": "# pods use the cluster's DNS; there is no other\n",
    }
    for name, text in texts.items():
        (node.path / name).write_text(text)
    (node.path / "kubeconfig").chmod(0o600)


class Programs:
    """Runs containerd, kube-proxy and kubelet, and restarts them when they end."""

    def __init__(self, node: NodeFiles) -> None:
        self.node = node
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.argv = {
            "containerd": ["containerd", "--config", str(node.path / "containerd.toml")],
            "kube-proxy": [f"{node.binaries}/kube-proxy", f"--config={node.path / 'proxy.json'}"],
            "kubelet": files.build_kubelet_argv(node),
        }

    def start(self, name: str) -> None:
        with (self.node.path / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                self.argv[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": PATH},
            )

    def await_runtime(self) -> None:
        deadline = time.monotonic() + RUNTIME_SECONDS
        argv = ["ctr", "--address", str(self.node.socket), "version"]
        while subprocess.run(argv, capture_output=True, env={"PATH": PATH}, timeout=30, check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"containerd does not answer: see {self.node.path / 'containerd.log'}")
            time.sleep(0.1)

    def import_pause(self) -> None:
        archive = self.node.path / "pause.tar"
        write_pause_image(archive)
        network.run("ctr", "--address", str(self.node.socket), "-n", "k8s.io", "images", "import", str(archive))
        archive.unlink()

    def keep(self) -> None:
        """One check: restart programs that ended, kill those that should not run."""
        for name in self.argv:
            child = self.children.get(name)
            wanted = name != "kubelet" or not (self.node.path / OFF).exists()
            alive = child is not None and child.poll() is None
            if wanted and not alive:
                self.start(name)
            elif not wanted and alive and child is not None:
                child.kill()


def reap(known: set[int]) -> None:
    """Reap orphans, which the first process inherits; processes that we started are reaped by their owners."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in known:
            return
        os.waitpid(found.si_pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    node = NodeFiles.load(parser.parse_args().dir)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    join_network(node)
    mount_private(node)
    make_cgroups(node)
    write_files(node)
    programs = Programs(node)
    programs.start("containerd")
    programs.await_runtime()
    programs.import_pause()
    while True:
        programs.keep()
        reap({child.pid for child in programs.children.values()})
        time.sleep(0.2)


if __name__ == "__main__":
    main()
