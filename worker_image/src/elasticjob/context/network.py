"""Chooses the network interface that has the pod's address, so that the backends do not have to guess.

gloo uses the interface that the host name resolves to, which in a pod can be the wrong one or none. The choice is a
pure function; reading the interfaces works on Linux only and returns an empty table elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping, MutableMapping

_SIOCGIFADDR = 0x8915


def read_interfaces() -> dict[str, str]:
    """The IPv4 address of each interface, by name."""
    try:
        import fcntl
    except ImportError:  # not on Unix
        return {}
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def find_interface(interfaces: Mapping[str, str], pod_ip: str, master_address: str, world_is_local: bool) -> str | None:
    """The name of the interface to use; None leaves the choice to the backend."""
    by_address = {address: name for name, address in interfaces.items()}
    if pod_ip:
        return by_address.get(pod_ip)
    if world_is_local and master_address in ("127.0.0.1", "localhost"):
        return by_address.get("127.0.0.1")
    return None


def set_interface(environ: MutableMapping[str, str], name: str | None) -> str:
    """Configure gloo and NCCL, unless the user did. Returns the interface that applies, as text."""
    if environ.get("GLOO_SOCKET_IFNAME"):
        return environ["GLOO_SOCKET_IFNAME"]
    if name is None:
        return ""
    environ["GLOO_SOCKET_IFNAME"] = name
    if name != "lo":
        environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    return name


def resolve(name: str) -> list[str]:
    """The addresses of a host name; empty if it does not resolve."""
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def own_address(environ: Mapping[str, str] = os.environ) -> str:
    """The address at which others reach this pod: the pod's IP, else that of the host name, else loopback."""
    if environ.get("ELASTICJOB_POD_IP"):
        return environ["ELASTICJOB_POD_IP"]
    addresses = [address for address in resolve(socket.gethostname()) if "." in address]
    return addresses[0] if addresses else "127.0.0.1"
