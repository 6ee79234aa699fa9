"""Why two worlds may compute different bits: other hardware or software, or operations without a fixed order.

Virtual ranks give each rank the same work; whether a rank computes the same from the same work is up to its kernels.
The facts of all ranks are compared at the start, and what is doubtful is logged. Nothing is changed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import messages, tree

_log = logging.getLogger("elasticjob.data.determinism")

Facts = dict[str, Any]


def observe(device: torch.device, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Facts:
    """What the bits of this rank's results depend on, besides its work. `device` is that of the model."""
    on_cuda = device.type == "cuda"
    facts: Facts = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_cuda else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": bool(on_cuda and torch.backends.cudnn.benchmark),
        "cublas": not on_cuda or os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        "optimizers": " ".join(_name(group) for one in optimizers for group in one.param_groups),
    }
    return facts | (_observe_cuda() if on_cuda else {})


def _name(group: dict[str, Any]) -> str:
    """Which of torch's implementations of an optimizer was asked for: they round differently."""
    return next((name for name in ("fused", "foreach") if group.get(name)), "plain" if "foreach" in group else "own")


def _observe_cuda() -> Facts:
    """What chooses the kernels of a CUDA device, and how exactly they compute."""
    attention = ("flash", "mem_efficient", "cudnn", "math")  # the implementations of scaled_dot_product_attention
    enabled = (getattr(torch.backends.cuda, f"{name}_sdp_enabled", bool)() for name in attention)
    return {
        "driver": _read_driver(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "precision": torch.get_float32_matmul_precision() + (" tf32" if torch.backends.cudnn.allow_tf32 else ""),
        "attention": " ".join(name for name, on in zip(attention, enabled, strict=True) if on),
    }


def _read_driver(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of the NVIDIA driver; "" if it cannot be read, as in some sandboxes."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", file.read_text())
    except OSError:
        return ""
    return found[0] if found else ""


# Facts that all ranks must share, and their names in a sentence.
_SHARED = {
    "torch": "versions of torch",
    "device": "devices",
    "threads": "numbers of CPU threads",
    "driver": "drivers",
    "cudnn": "versions of cuDNN",
    "precision": "precisions of float32",
    "attention": "implementations of attention",
    "optimizers": "implementations of the optimizer",
}


def find_doubts(facts: list[Facts]) -> list[str]:
    """Why these ranks, or the same job elsewhere, may compute other bits: one sentence each. Pure."""
    doubts = []
    if not all(one["deterministic"] for one in facts):
        doubts.append(
            "operations without a deterministic implementation are not reported: call "
            "torch.use_deterministic_algorithms(True), which raises an error at the first one"
        )
    if any(one["benchmark"] for one in facts):
        doubts.append("cuDNN chooses kernels by their speed: set torch.backends.cudnn.benchmark = False")
    if not all(one["cublas"] for one in facts):
        doubts.append("cuBLAS may add in any order: set CUBLAS_WORKSPACE_CONFIG=:4096:8")
    for name, what in _SHARED.items():
        values = [str(one.get(name, "none")) for one in facts]
        if len(set(values)) > 1:
            ranks = [f"rank {rank}: {value}" for rank, value in enumerate(values) if value != values[0]]
            doubts.append(f"the ranks have different {what} (rank 0: {values[0]}; {', '.join(ranks)})")
    return doubts


def report(device: torch.device, optimizers: Iterable[torch.optim.Optimizer] = ()) -> list[str]:
    """Compare the ranks of the world, and log the doubts on rank 0. All ranks call it."""
    mine = observe(device, optimizers)
    facts = [mine] if tree.is_alone() else messages.all_gather_json(mine)
    doubts = find_doubts(facts)
    if not dist.is_initialized() or dist.get_rank() == 0:
        for doubt in doubts:
            if doubt not in _said:  # a session enters many worlds
                _log.warning("The curve may differ in other worlds: %s.", doubt)
        _said.update(doubts)
    return doubts


_said: set[str] = set()
