"""DistributedDataParallel around a module that is already equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_DDP = "torch.nn.parallel.DistributedDataParallel.__init__"
CAN_SKIP_SYNC = probe.takes(_DDP, "init_sync")  # since torch 2.7


def make_ddp(
    module: torch.nn.Module,
    devices: Sequence[torch.device] | None,
    sync: bool,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> DistributedDataParallel:
    """DDP around a module. If `sync`, or if torch requires it, rank 0's parameters are sent to all ranks."""
    how = dict(options) if not CAN_SKIP_SYNC else {**options, "init_sync": sync}
    return DistributedDataParallel(module, device_ids=devices, **how)


PROBES = (
    Probe(
        "a session's DDP does not send the parameters again in each world",
        (f"{_DDP}(init_sync)",),
        "each world costs one broadcast of the model more",
        lambda: CAN_SKIP_SYNC,
    ),
)
