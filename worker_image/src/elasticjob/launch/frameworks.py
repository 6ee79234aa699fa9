"""What is known of libraries that are imported before the fork.

Which threads survive it, which ranks must be mended, and which modules a library imports only when it is used.

One row a library. A library without a row is judged by what its import does (`preload`): one that starts a thread, a
process or a device, or that looks for its rank, is not imported before the fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.launch.leading import Attempt, Import, Step, find_attributes, find_imports

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


@dataclass(frozen=True)
class LateImport:
    """A module that a library imports while it prepares the training, if the module is installed."""

    package: str
    name_ends: str  # the library does so only in what it calls by such a name; "" in whatever a script uses of it
    module: str
    variables: str  # what the module reads when it is imported; a script that sets one does so after its own imports

    def is_made_by(self, step: Import) -> bool:
        names = any(name.endswith(self.name_ends) for name in step.names)
        return step.module.partition(".")[0] == self.package and (names or not self.name_ends)


LATE_IMPORTS = (
    # accelerate looks whether a loader has a dataset of this package, and whether a model is one of DeepSpeed's.
    LateImport("accelerate", "", "datasets", "HF_"),
    LateImport("accelerate", "", "deepspeed", "DS_"),
    LateImport("transformers", "Trainer", "datasets", "HF_"),  # its loaders and models are accelerate's
    LateImport("transformers", "Trainer", "deepspeed", "DS_"),
    LateImport("trl", "Trainer", "deepspeed", "DS_"),  # Trainers of transformers; it imports datasets by itself
    # It calls torch.compile when it is imported, which loads the whole compiler: 700 modules, more than three seconds.
    LateImport("deepspeed", "", "deepspeed.runtime.zero.muon.muon_optimizer", "TORCHINDUCTOR_"),
)


OWN = "elasticjob"  # it loads each of its names when it is first used


def find_late(steps: Sequence[Step], texts: Sequence[str]) -> tuple[Step, ...]:
    """What the libraries in `steps` will import when they are used. `texts`: the sources of the script's own code."""
    made = tuple(find_imports(steps))
    found = [
        row.module
        for row in LATE_IMPORTS
        if any(map(row.is_made_by, made)) and not any(row.variables in text for text in texts)
    ]
    late = [Attempt((Import(module),)) for module in dict.fromkeys(found)]
    names = [name for text in texts for name in find_attributes(text, OWN)] if Import(OWN) in made else []
    return (*late, *([Import(OWN, tuple(dict.fromkeys(names)))] if names else []))


def mend_ranks() -> None:
    """In a worker: what was noted before the fork becomes the rank that the variables say now."""
    for row in RANKS:
        holder = getattr(sys.modules.get(row.module), row.holder, None)
        texts = [os.environ[name] for name in row.variables if os.environ.get(name, "").isdigit()]
        if holder is not None and texts:
            holder.rank = int(texts[0])
