"""Removes what a container node leaves outside of its namespaces: control groups and the bridge."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from elasticjob_devcluster.containerd import network
from elasticjob_devcluster.containerd.tools import CGROUPS


def clean_up(cluster_id: str, cluster: int) -> None:
    """Remove everything that the nodes of a cluster left."""
    remove_cgroups(cluster_id)
    network.delete_bridge(cluster)


def remove_cgroups(cluster_id: str, node: str | None = None, *, seconds: float = 10.0) -> None:
    """Remove empty control groups, leaves first; waits up to `seconds` for processes that are exiting."""
    deadline = time.monotonic() + seconds
    while trees := _trees(cluster_id, node):
        for tree in trees:
            for directory, _, _ in os.walk(tree, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
        if time.monotonic() > deadline:
            return
        if _trees(cluster_id, node):
            time.sleep(0.05)


def _trees(cluster_id: str, node: str | None) -> list[Path]:
    if not CGROUPS.is_dir():
        return []
    name = f"ejdc-{cluster_id}" + (f"/{node}" if node else "")
    return [tree for hierarchy in CGROUPS.iterdir() if (tree := hierarchy / name).is_dir()]
