"""A transfer in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from elasticjob.collectives.explain import explained
from elasticjob.errors import BufferTouchedError
from elasticjob.torchcompat import versions

T = TypeVar("T")


class Pending(Generic[T]):
    """A transfer in flight. `wait()` returns its result; do not change the tensors that it uses before that."""

    def __init__(self, works: Sequence[Any], finish: Callable[[], T], buffer: torch.Tensor, name: str) -> None:
        self._works = works
        self._finish = finish
        self._buffer = buffer  # kept alive: the backend reads or writes it
        self._changes = versions.count_changes(buffer)
        self._name = name

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> T:
        """Wait for the transfer and return its result.

        Raises BufferTouchedError if the tensor was changed meanwhile, CollectiveFailedError if a rank was lost.
        """
        touched = versions.count_changes(self._buffer) != self._changes
        with explained(self._name):
            for work in self._works:
                work.wait()
        if touched:
            raise BufferTouchedError(
                f"{self._name}: the tensor was changed in place before wait(). What was transferred is undefined. "
                "Call wait() first, or pass tensor.clone()."
            )
        return self._finish()
