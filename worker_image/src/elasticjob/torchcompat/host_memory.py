"""Host memory that a CUDA device knows, so that copies into it are fast and need no processor.

Pinned tensors would be the public way. torch rounds each up to a power of two, and cannot pin memory that is shared.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

_log = logging.getLogger("elasticjob.torchcompat.host_memory")


def register(data: torch.Tensor, device: torch.device) -> bool:
    """Let the device know this memory until the tensor is freed. False if it cannot."""
    with torch.cuda.device(device):
        try:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = int(runtime.cudaHostRegister(data.data_ptr(), data.numel() * data.element_size(), 0))
        except (RuntimeError, AttributeError) as error:
            _log.debug("cudaHostRegister: %s", error)
            return False
        if code:
            _log.debug("cudaHostRegister: error %d", code)
            _forget_error(device)
            return False
    weakref.finalize(data, _unregister, data.data_ptr(), device).atexit = False
    return True


def _unregister(address: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        if int(torch.cuda.cudart().cudaHostUnregister(address)):  # type: ignore[no-untyped-call]
            _forget_error(device)


def _forget_error(device: torch.device) -> None:
    """CUDA keeps the last error of a thread, and torch's next call in it would raise that one."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        _log.debug("cleared: %s", error)
