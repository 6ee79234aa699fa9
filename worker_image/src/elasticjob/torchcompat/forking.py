"""Forks a process that has imported torch. The functions import torch; this module does not."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import sys
from typing import Any

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_COMPILER = "torch._dynamo"
_DEVICES = ("cuda", "xpu", "mtia")


def import_compiler() -> None:
    """Import what the first optimizer of a process imports anyway, which takes about a second."""
    with contextlib.suppress(ImportError):
        importlib.import_module(_COMPILER)


def thaw_what_is_counted() -> None:
    """Let the garbage collector free what this process inherited, if a library prints what is left at its end.

    Triton 3.9, which torch 2.15 uses, prints all of its functions that are not freed. To free everything takes more
    than a second, so a process without such a library leaves it to the kernel.
    """
    kinds = vars(sys.modules.get("triton._C.libtriton.ir", object)).values()
    if any(type(kind).__module__ == "nanobind" for kind in kinds):
        gc.unfreeze()


def has_lost_devices() -> bool:
    """Whether a device driver was initialised before the fork, so that this process cannot use its devices.

    torch also reports this if the parent only looked for devices and there are none; nothing was initialised then. If
    torch does not report it, the devices of a forked process count as lost.
    """
    import torch

    return any(_has_lost(getattr(torch, name, None)) for name in _DEVICES)


def _has_lost(module: Any) -> bool:
    if module is None or not getattr(module, "_is_in_bad_fork", lambda: True)():
        return False
    try:
        return int(module.device_count()) > 0
    except RuntimeError:  # raised by torch in a process that lost its devices
        return True


PROBES = (
    Probe(
        "the compiler, which the first optimizer imports, is imported while the standby waits",
        (_COMPILER,),
        "each worker imports it: about a second",
        lambda: importlib.util.find_spec(_COMPILER) is not None,
    ),
    Probe(
        "a forked worker knows whether it can use the devices",
        ("torch.cuda._is_in_bad_fork",),
        "on a machine with devices every worker starts cold",
        probe.has_all("torch.cuda._is_in_bad_fork"),
    ),
)
