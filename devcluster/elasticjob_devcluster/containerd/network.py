"""Addresses and links of container nodes.

A bridge per cluster, 100.64.<cluster>.0/24, with this machine as .1 and the nodes from .2. Every node has a network for
its pods, 100.<65 + node>.<cluster>.0/24. A laptop's own networks do not use these (carrier-grade NAT) addresses.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import Final

from elasticjob_devcluster.containerd.tools import PATH

MAX_NODES: Final = 50


def bridge_name(cluster: int) -> str:
    return f"ejdc{cluster}"


def gateway(cluster: int) -> str:
    """The address of this machine for nodes and pods."""
    return f"100.64.{cluster}.1"


def node_address(cluster: int, node: int) -> str:
    if not 0 <= node < MAX_NODES:
        raise ValueError(f"node number {node}: a cluster has at most {MAX_NODES} container nodes")
    return f"100.64.{cluster}.{2 + node}"


def pod_network(cluster: int, node: int) -> str:
    return f"100.{65 + node}.{cluster}.0/24"


def routes(cluster: int, own: int | None) -> list[tuple[str, str]]:
    """(network, via) for the pods of all possible nodes except `own`."""
    return [(pod_network(cluster, n), node_address(cluster, n)) for n in range(8) if n != own]


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, env={"PATH": PATH}, timeout=30)


def create_bridge(cluster: int) -> None:
    """Create the cluster's bridge on this machine, with routes to all pods."""
    name = bridge_name(cluster)
    delete_bridge(cluster)  # left by a former cluster with our number
    run("ip", "link", "add", name, "type", "bridge")
    run("ip", "addr", "add", f"{gateway(cluster)}/24", "dev", name)
    run("ip", "link", "set", name, "up")
    for network, via in routes(cluster, None):
        run("ip", "route", "replace", network, "via", via, "dev", name)


def delete_bridge(cluster: int) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        run("ip", "link", "del", bridge_name(cluster))
