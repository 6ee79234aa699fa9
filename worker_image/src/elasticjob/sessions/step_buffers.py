"""The buffers of a replicated model, such as the running mean of batch norm, as they were before a step.

Forward passes change them, and DDP sends rank 0's in each. After an abort they can be anything, and they are part of
the state that the next world starts from: a step that is rolled back takes them back too. So does a loss after other
passes, of which no fence has said that they were right: between two steps, or after the optimizers of one.
"""

from __future__ import annotations

import torch

from elasticjob.data.buffers import Slot, find_slots


class StepBuffers:
    """Copies of the buffers of one model. A model without buffers costs nothing."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._slots: list[Slot] = [] if model is None else find_slots(model)
        self._before: list[tuple[Slot, torch.Tensor, torch.Tensor]] | None = None  # each, and what it was
        self.is_unsure = False  # a pass has followed of which nobody knows yet whether it was right

    @torch.no_grad()
    def keep(self) -> None:
        """A step begins, with its first micro-batch or with a later one."""
        if self._before is None:
            present = [(slot, getattr(*slot)) for slot in self._slots]
            self._before = [(slot, one, one.clone()) for slot, one in present if one is not None]

    def keep_again(self) -> None:
        """Passes of the model may follow that are no part of a step. All that was done so far is right."""
        if not self.is_unsure:
            self.forget()
            self.keep()
            self.is_unsure = bool(self._before)

    def forget(self) -> None:
        """The step is applied, or the pass was right."""
        self._before, self.is_unsure = None, False

    @torch.no_grad()
    def take_back(self) -> None:
        for (module, name), present, before in self._before or ():
            present.resize_(before.shape).copy_(before)  # an observer gets its shape in a pass
            if getattr(module, name) is not present:  # the forward pass has assigned another one
                setattr(module, name, present)
        self.forget()
