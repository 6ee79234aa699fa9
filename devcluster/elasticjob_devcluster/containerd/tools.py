"""The tools that container nodes need on the machine, and whether they are installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

# Program → the Debian package that contains it.
PROGRAMS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "conntrack": "conntrack",
}
CNI_PLUGINS: Final = ("bridge", "host-local", "loopback", "portmap")
CNI_PLACES: Final = ("/usr/lib/cni", "/opt/cni/bin")
CNI_PACKAGE: Final = "containernetworking-plugins"
CGROUPS: Final = Path("/sys/fs/cgroup")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cni_directory() -> Path | None:
    for place in CNI_PLACES:
        if all(os.access(Path(place, plugin), os.X_OK) for plugin in CNI_PLUGINS):
            return Path(place)
    return None


def missing_packages() -> list[str]:
    """The Debian packages to install before container nodes can run."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program, path=PATH) is None}
    if cni_directory() is None:
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def why_unavailable() -> str:
    """ "" if container nodes can run here, otherwise what is missing and the remedy."""
    if os.geteuid() != 0:
        return "container nodes need root: run as root, or use nodes that run pods as processes"
    if packages := missing_packages():
        return f"container nodes need {', '.join(packages)}: apt-get install {' '.join(packages)}"
    if not os.access(CGROUPS, os.W_OK):
        return f"container nodes need a writable {CGROUPS}"
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        return "container nodes need a kernel with overlayfs"
    return ""
