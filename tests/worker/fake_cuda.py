"""Streams and events of a CUDA device, for code that orders its work by them. What is queued is done by `run`, or where
somebody waits; which of two streams is ahead where nothing orders them is the test's choice.

    device = FakeCuda(monkeypatch)
    device.put(lambda: value.append(1))  # as a kernel, on the current stream
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


class Stream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.queued: list[Callable[[], bool]] = []  # each does its work, or returns False: it has to wait
        self.done = 0
        self._cuda = cuda
        cuda.streams.append(self)

    def wait_event(self, event: Event) -> None:
        self.queued.append(event.query)

    def wait_stream(self, other: Stream) -> None:
        event = Event(self._cuda)
        event.record(other)
        self.wait_event(event)

    def go_on(self) -> bool:
        """Whether the next of what is queued was done."""
        if self.done == len(self.queued) or not self.queued[self.done]():
            return False
        self.done += 1
        return True


class Event:
    def __init__(self, cuda: FakeCuda, enable_timing: bool = False) -> None:
        self._cuda, self._stream, self._place = cuda, cuda.current, 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or self._cuda.current
        self._place = len(self._stream.queued)

    def query(self) -> bool:
        return self._stream.done >= self._place

    def synchronize(self) -> None:
        self._cuda.run(self.query)

    def elapsed_time(self, other: Event) -> float:
        return 1000.0


class Memory:
    """A tensor that the device copies to when it comes to it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.value = 0
        self._cuda = cuda

    def copy_(self, source: Memory, non_blocking: bool = False) -> None:
        assert non_blocking, "the processor would wait"
        self._cuda.put(lambda: self.fill(source.value))

    def fill(self, value: int) -> None:
        self.value = value


class FakeCuda:
    """Takes the place of what this process would use of a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[Stream] = []
        self.current = self.first = Stream(self)
        self.prefers: Stream | None = None  # the stream that is ahead of others
        cuda: dict[str, Any] = {
            "Stream": lambda device=None: Stream(self),
            "Event": lambda enable_timing=False: Event(self, enable_timing),
            "stream": self.use,
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.first,
            "device": lambda device: contextlib.nullcontext(),
            "synchronize": lambda device=None: self.run(),
        }
        for name, one in cuda.items():
            monkeypatch.setattr(torch.cuda, name, one)

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def put(self, call: Callable[[], object]) -> None:
        """Queue this on the current stream."""

        def do() -> bool:
            call()
            return True

        self.current.queued.append(do)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Go on `until` that holds, or to the end of all that is queued."""
        ordered = sorted(self.streams, key=lambda one: one is not self.prefers)
        while not until() and any(one.go_on() for one in ordered):
            pass
