"""The buffers of a replicated model, such as the running mean of batch norm, and its modes, as they were before a step.

Forward passes change them, and DDP sends rank 0's in each. After an abort they can be anything, and they are part of
the state that the next world starts from: a step that is rolled back takes them back too. So does a loss after other
passes, of which no fence has said that they were right: between two steps, or after the optimizers of one.

A loss in an evaluation breaks it off between `model.eval()` and `model.train()`. Without `dropout`, or with the running
mean of batch norm, this rank would train on as no other does. So the modes are noted where steps and blocks begin, and
not in a pass, which may be one of an evaluation. Code outside of any block comes to its end: what it has set holds.
"""

from __future__ import annotations

import torch

from elasticjob.data.buffers import Slot, find_slots


class StepBuffers:
    """Copies of the buffers of one model, and its modules that train. A model without buffers costs next to nothing."""

    def __init__(self, model: torch.nn.Module | None, *, copies: bool = True) -> None:
        """`copies=False`: somebody else takes care of the buffers."""
        self._slots: list[Slot] = [] if model is None or not copies else find_slots(model)
        self._before: list[tuple[Slot, torch.Tensor, torch.Tensor]] | None = None  # each, and what it was
        self._modules = [] if model is None else list(model.modules())
        self._modes: list[bool] | None = None  # whether each of them trained as the step or the block began
        self._has_gradients = True  # whether passes were recorded: an interrupt may come between `no_grad` and its end
        self.is_unsure = False  # a pass has followed of which nobody knows yet whether it was right
        self._is_kept_here = False

    def keep(self) -> None:
        """A step begins, with its first micro-batch or with a later one."""
        if self._before is None:
            self._copy()
        if self._modes is None:
            self._note_modes()

    def begin_block(self) -> None:
        """One between two steps. All that was done so far is right."""
        self._is_kept_here = False
        self.keep_again()
        self._note_modes()

    def end_block(self) -> None:
        """Also one that an exception of the script has ended, which has no modes to take back."""
        self._modes = None

    def keep_again(self) -> None:
        """Passes of the model may follow that are no part of a step. All that was done so far is right."""
        if not self.is_unsure:
            if not self._is_kept_here:
                self._copy()
            self.is_unsure = bool(self._before)
        if not self.is_unsure:
            self._before = None  # the next step looks again

    def keep_here(self) -> None:
        """All that was done so far is right, also by a step that is applied. What follows may not be."""
        if not self.is_unsure:
            self._copy()
            self._is_kept_here = True

    def forget(self) -> None:
        """The step is applied, or the pass was right."""
        self._before, self._modes, self.is_unsure, self._is_kept_here = None, None, False, False

    def take_back(self) -> None:
        if self._before is not None:
            self._put_back(self._before)
        if self._modes is not None:
            for module, trains in zip(self._modules, self._modes, strict=True):
                if module.training is not trains:
                    module.training = trains
            torch.set_grad_enabled(self._has_gradients)
        self.forget()

    def _copy(self) -> None:
        present = [(slot, getattr(*slot)) for slot in self._slots]
        self._before = [(slot, one, one.detach().clone()) for slot, one in present if one is not None]

    def _note_modes(self) -> None:
        self._modes = [module.training for module in self._modules]
        self._has_gradients = torch.is_grad_enabled()

    @staticmethod
    @torch.no_grad()
    def _put_back(kept: list[tuple[Slot, torch.Tensor, torch.Tensor]]) -> None:
        for (module, name), present, before in kept:
            present.resize_(before.shape).copy_(before)  # an observer gets its shape in a pass
            if getattr(module, name) is not present:  # the forward pass has assigned another one
                setattr(module, name, present)
