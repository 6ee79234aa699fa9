"""Copies from a device into host memory, beside the training: a stream of their own, and memory that is registered.

A copy that the training waits for costs seconds for a large state, and one into memory that the device does not know
is slow as well. So the memory of a snapshot is registered with the device once, and copies are queued on a stream that
waits for what the training has queued before. The training's stream waits for them only before it overwrites what they
read, and the processor does not wait at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from elasticjob.torchcompat import host_memory


class Lane(Protocol):
    """What snapshots need of a device. Apart from `register` and `wait` for the training's thread."""

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is on the device."""

    def register(self, data: torch.Tensor) -> bool:
        """Let the device copy into this host memory, until the tensor is freed. False if it cannot."""

    def queue(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy each second tensor into the first one, after all that the training has queued until now."""

    def hold_back(self) -> None:
        """Let what the training queues from now on wait for the copies."""

    def wait(self) -> None:
        """Wait until the copies are complete."""

    def take_stalls(self) -> float:
        """Seconds that the device has waited because of `hold_back`, since the last call."""

    def is_capturing(self) -> bool:
        """Whether the training is being recorded, to be repeated without Python: then it cannot be held back."""


def find_lane(tensors: Sequence[torch.Tensor]) -> Lane | None:
    """The lane for these tensors; None for those of the processor."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    return None if device is None else CudaLane(device)


class CudaLane:
    """A side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied: Any = None  # the event after the last copies
        self._is_held = True  # nothing is to be waited for
        self._waits: list[tuple[Any, Any]] = []  # events before and after each wait of the training's stream

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device

    def register(self, data: torch.Tensor) -> bool:
        return host_memory.register(data, self._device)

    def queue(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, tensor in copies:
                target.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(self._stream)
        self._is_held = False

    def hold_back(self) -> None:
        if self._is_held:
            return
        self._is_held = True
        current = torch.cuda.current_stream(self._device)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record(current)
        current.wait_event(self._copied)
        after.record(current)
        self._waits.append((before, after))

    def wait(self) -> None:
        if self._copied is not None:
            with torch.cuda.device(self._device):  # the thread of the snapshot is on another one
                self._copied.synchronize()

    def take_stalls(self) -> float:
        done = [pair for pair in self._waits if pair[1].query()]
        self._waits = [pair for pair in self._waits if pair not in done]
        return float(sum(before.elapsed_time(after) for before, after in done)) / 1000

    def is_capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())
