"""How torch's NCCL backend behaves in a session: errors and hangs are the session's to handle.

torch's watchdog polls each communicator. Once it sees an error it dumps, sleeps (a minute by default) and ends the
process, and an abort in between does not keep it from that. A monitor of its own ends the process if the watchdog
itself is stuck, as it may be in a world that was left behind. A session survives exactly these errors, and has its own
watch for hangs. torch reads the variables when a group is made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from elasticjob.torchcompat.probe import Probe

_OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # torchrun's agent sets 1 for its workers
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # those that follow an abort
    "TORCH_NCCL_DESYNC_DEBUG": "0",  # it brings torch's error handling back
}
# NCCL does not always free the multicast memory of NVLink after an abort. Whoever sets it knows better.
_UNLESS_SET = {"NCCL_NVLS_ENABLE": "0"}

_LEGACY = "nccl-legacy"

logger = logging.getLogger("elasticjob")


def find_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that have to change before a session makes a group. Pure."""
    changed = {name: value for name, value in _OURS.items() if environ.get(name) != value}
    return changed | {name: value for name, value in _UNLESS_SET.items() if name not in environ}


def stop_checking() -> None:
    """Torch's checks of collectives bring its error handling back, whatever its variable says."""
    torch_dist: Any = dist
    if torch_dist.get_debug_level() == torch_dist.DebugLevel.DETAIL:
        logger.warning(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL lets torch end the process when another one is lost, so the session uses"
            " INFO. For DETAIL, run the script without a session: ELASTICJOB_IN_PROCESS=0."
        )
        torch_dist.set_debug_level(torch_dist.DebugLevel.INFO)


def find_backend(name: str) -> str:
    """The backend that a session uses under this name: torch 2.15 means another implementation by "nccl"."""
    return _LEGACY if name == "nccl" and has_legacy() else name


def has_legacy() -> bool:
    return _LEGACY in dist.Backend.backend_list


PROBES = (
    Probe(
        "a session's NCCL is the implementation whose errors and aborts it knows",
        ("torch.distributed.Backend.backend_list",),
        "sessions use what this torch calls nccl",
        lambda: isinstance(dist.Backend.backend_list, list),
    ),
)
