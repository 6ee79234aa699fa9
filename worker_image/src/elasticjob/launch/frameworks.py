"""What is known of libraries that are imported before the fork: which threads survive it, which ranks must be mended.

One row a library. A library without a row is judged by what its import does (`preload`): one that starts a thread, a
process or a device, or that looks for its rank, is not imported before the fork.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

# Packages whose import starts threads of native code that are stopped at a fork and started anew when they are needed.
FORK_SAFE_THREADS = {
    "numpy": "OpenBLAS stops its threads at a fork (pthread_atfork) and starts them at the next call",
    "scipy": "its own OpenBLAS does the same",
    "pyarrow": "Arrow makes its thread pools anew in a child (since 12)",
}


@dataclass(frozen=True)
class RankAtImport:
    """A module that notes the rank of the process when it is imported, and where."""

    module: str
    holder: str  # the attribute of the module that has the attribute `rank`
    variables: tuple[str, ...]  # where the module itself looks, in its order


RANKS = (
    RankAtImport(
        "lightning.fabric.utilities.rank_zero",
        "rank_zero_only",
        ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"),
    ),
    RankAtImport(
        "lightning_fabric.utilities.rank_zero",
        "rank_zero_only",
        ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"),
    ),
    RankAtImport("torchmetrics.utilities.prints", "rank_zero_only", ("LOCAL_RANK",)),
)
MENDED = frozenset(row.module for row in RANKS)


def mend_ranks() -> None:
    """In a worker: what was noted before the fork becomes the rank that the variables say now."""
    for row in RANKS:
        holder = getattr(sys.modules.get(row.module), row.holder, None)
        texts = [os.environ[name] for name in row.variables if os.environ.get(name, "").isdigit()]
        if holder is not None and texts:
            holder.rank = int(texts[0])
