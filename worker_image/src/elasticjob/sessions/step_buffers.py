"""The buffers of a replicated model, such as the running mean of batch norm, as they were before a step.

Forward passes change them, and DDP sends rank 0's in each. After an abort they can be anything, and they are part of
the state that the next world starts from: a step that is rolled back takes them back too.
"""

from __future__ import annotations

import torch


class StepBuffers:
    """Copies of the buffers of one model. A model without buffers costs nothing."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._present: list[torch.Tensor] = [] if model is None else list(model.buffers())
        self._before: list[torch.Tensor] | None = None

    @torch.no_grad()
    def keep(self) -> None:
        """A step begins, with its first micro-batch or with a later one."""
        if self._before is None:
            self._before = [one.clone() for one in self._present]

    def forget(self) -> None:
        """The step is applied."""
        self._before = None

    @torch.no_grad()
    def take_back(self) -> None:
        if self._before:
            for present, before in zip(self._present, self._before, strict=True):
                present.copy_(before)
        self._before = None
