"""DistributedDataParallel around a module that is already equal on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_DDP = "torch.nn.parallel.DistributedDataParallel.__init__"
_RELEASE = "torch.nn.parallel.DistributedDataParallel._remove_autograd_hooks"
_POWER = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
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


def release(model: DistributedDataParallel) -> None:
    """Take the hooks of this DDP from the parameters of its module, and what belongs to its world from itself.

    Its destructor does that too, but whoever keeps it would keep them: an exception with its frames, or a hook that
    notes the modules that ran. After a backward pass that a loss has ended the hooks reduce the gradients of later
    passes; the reducer has a buffer as large as all gradients, and holds the group.
    """
    if RELEASE.holds():
        model._remove_autograd_hooks()  # type: ignore[no-untyped-call]
    for one in getattr(model, "_accum_grad_hooks", ()):  # of torch's reducer in Python, for compiled autograd
        one.remove()
    for name in ("logger", "reducer", "process_group"):
        vars(model).pop(name, None)


def is_known_hook_state(state: Any) -> bool:
    """Whether it is PowerSGD's, which remembers earlier steps, and the random numbers that it has drawn."""
    kind = getattr(sys.modules.get(_POWER), "PowerSGDState", None)  # a script that has a state has imported it
    return kind is not None and isinstance(state, kind)


def renew_hook_state(state: Any) -> None:
    """Let PowerSGD begin anew: its state has errors and matrices of each bucket, and the next DDP has other buckets."""
    if is_known_hook_state(state):
        state.iter = 0  # it compresses nothing until DDP has made its buckets
        for of_buckets in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            of_buckets.clear()


RELEASE = Probe(
    "a lost world's DDP takes no part in the next one, whoever keeps it",
    (_RELEASE,),
    "a script that keeps it, for example with an exception, may end after a loss with an error of DDP's",
    probe.has_all(_RELEASE),
)
PROBES = (
    RELEASE,
    Probe(
        "a session's DDP does not send the parameters again in each world",
        (f"{_DDP}(init_sync)",),
        "each world costs one broadcast of the model more",
        lambda: CAN_SKIP_SYNC,
    ),
)
