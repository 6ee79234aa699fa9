"""Forking a process that has imported torch. torch is imported by the functions, not by this module."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_COMPILER = "torch._dynamo"
_DEVICES = ("cuda", "xpu", "mtia")


def import_compiler() -> None:
    """Import what the first optimizer of a process imports, used or not: about a second."""
    with contextlib.suppress(ImportError):
        importlib.import_module(_COMPILER)


def has_lost_devices() -> bool:
    """Whether something had started a device's driver before the fork: this process cannot use it any more.

    torch says so too where somebody only looked for devices and there are none: nothing was started then. Where it
    says nothing, the devices of a forked process count as lost.
    """
    import torch

    return any(_has_lost(getattr(torch, name, None)) for name in _DEVICES)


def _has_lost(module: Any) -> bool:
    if module is None or not getattr(module, "_is_in_bad_fork", lambda: True)():
        return False
    try:
        return int(module.device_count()) > 0
    except RuntimeError:  # that is what torch raises in a process that lost them
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
