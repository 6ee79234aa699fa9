"""The random numbers of this process: where each generator is, and back to there, so that a repeated step draws the
same numbers again: masks of dropout, augmentations, samples of the script.

They are Python's generator, NumPy's global one if it is imported, and torch's of the CPU and of the present device.
Generators that a script makes itself are its own.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Generators:
    """Where the generators are."""

    python: tuple[Any, ...]
    numpy: Any  # None: it is not imported
    cpu: torch.Tensor
    device: torch.Tensor | None  # None: there is none that is used


def read() -> Generators:
    numpy: Any = sys.modules.get("numpy")
    is_on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return Generators(
        python=random.getstate(),
        numpy=None if numpy is None else numpy.random.get_state(),
        cpu=torch.get_rng_state(),
        device=torch.cuda.get_rng_state() if is_on_device else None,  # its seed and an offset: nobody waits for it
    )


def restore(state: Generators | None) -> None:
    """Let every generator go on from there; if nothing is known, from where it is."""
    if state is None:
        return
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)
    torch.set_rng_state(state.cpu)
    if state.device is not None:
        torch.cuda.set_rng_state(state.device)
