"""Whether torch_xla, where a script uses it, sees the other ranks of the world.

Its collectives go over a world of its own, which the device's runtime has. On the CPU, and on TPUs of different slices,
that is one process: there, `all_reduce` of two ranks leaves both as they are, without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEVICE = "PJRT_DEVICE"
MODULE = "torch_xla"
REMEDY = "train on CPU tensors with gloo, or on devices of one slice: see docs/frameworks.md#neighbours"


def count_processes(environ: Mapping[str, str], modules: Mapping[str, Any]) -> int | None:
    """How many processes torch_xla sees; None if the script has not imported it, or its device is not in use yet.

    It is not asked before: that would take the device, after which a script can no longer choose another one.
    """
    if MODULE not in modules:
        return None
    if environ.get(DEVICE, "").upper() == "CPU":
        return 1
    try:
        if modules[MODULE]._XLAC._xla_runtime_is_initialized():
            return int(modules[f"{MODULE}.runtime"].process_count())
    except Exception:  # of another version
        return None
    return None


def find_problem(processes: int | None, world_size: int) -> str | None:
    """What is wrong if torch_xla sees so many processes in a world of this size; None if nothing is."""
    if processes != 1 or world_size == 1:
        return None
    return f"torch_xla sees one process, and the world has {world_size}: its collectives do nothing, without an error"
