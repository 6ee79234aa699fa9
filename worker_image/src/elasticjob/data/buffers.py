"""A model's buffers, such as the statistics of batch norm, when virtual ranks share one model.

Every virtual rank starts a step with the same buffers, and those of virtual rank 0 are kept: what DDP does on as many
devices. So buffers are the same on all ranks after every step, and a lost rank takes nothing with it.

Small buffers are copied in every turn. Large ones, such as an attention mask, are copied only if they have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from elasticjob.collectives import tree
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import versions

SMALL = 1 << 16  # elements; torch does not count the changes that batch norm makes

Slot = tuple[torch.nn.Module, str]  # where a buffer is; a forward pass may assign another tensor


def find_slots(model: torch.nn.Module) -> list[Slot]:
    """The places of a model's buffers."""
    return [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]


class SharedBuffers:
    """The buffers of one model. `begin` and `keep` surround a pass; `commit` or `take_back` end a step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._slots = find_slots(model)
        self._tensors = [self._read(index) for index in range(len(self._slots))]
        self._before = [tensor.detach().clone() for tensor in self._tensors]
        self._counts = [versions.count_changes(tensor) for tensor in self._tensors]
        self._has_large = any(tensor.numel() > SMALL for tensor in self._tensors)
        self._kept: dict[int, torch.Tensor] = {}  # virtual rank 0's, by index

    def begin(self, first: bool) -> None:
        """A virtual rank takes its turn; `first`: of a step. Changes from outside of a step are adopted."""
        if not first:
            self._write(self._find_changed(), self._before)
            return
        self._kept = {}
        for index in self._find_changed():
            now = self._tensors[index] = self._read(index)
            self._counts[index] = versions.count_changes(now)
            if now.shape == self._before[index].shape:
                self._before[index].copy_(now)
            else:
                self._before[index] = now.detach().clone()

    def keep(self) -> None:
        """Virtual rank 0 has ended its turn. Raises ConfigurationError if a buffer has got another shape in it."""
        for (module, name), before in zip(self._slots, self._before, strict=True):
            now = getattr(module, name)
            if now is not None and now.shape != before.shape:
                raise ConfigurationError(
                    f"the buffer {name!r} of {type(module).__name__} had the shape {tuple(before.shape)} and has got"
                    f" {tuple(now.shape)} in a step, and virtual ranks exchange it. Pass one batch through the model,"
                    " under torch.no_grad(), before the session is made; let no buffer grow."
                )
        self._kept = {index: self._read(index).detach().clone() for index in self._find_changed()}

    def exchange(self) -> None:
        """Send what rank 0 has kept, to all ranks. All call it."""
        if not self._tensors or tree.is_alone():
            return
        changed = list(range(len(self._tensors)))
        if self._has_large:
            flags = torch.tensor([index in self._kept for index in changed], dtype=torch.uint8)
            flags = flags.to(self._tensors[0].device)
            dist.broadcast(flags, src=0)
            changed = [index for index, flag in enumerate(flags.tolist()) if flag]
        if not changed:
            return
        mine = [_to_bytes(self._kept.get(index, self._before[index])) for index in changed]
        flat = torch.cat(mine)
        dist.broadcast(flat, src=0)
        parts = torch.split(flat, [one.numel() for one in mine])
        likes = [self._before[index] for index in changed]
        values = [part.clone().view(like.dtype).view(like.shape) for part, like in zip(parts, likes, strict=True)]
        self._kept = dict(zip(changed, values, strict=True))

    def apply(self) -> None:
        """Put what was kept into the model. It is taken back if the step is broken off before `commit`."""
        self._write(self._find_changed() - self._kept.keys(), self._before)
        self._write(self._kept, self._kept)

    def commit(self) -> None:
        """The step is applied."""
        for index, value in self._kept.items():
            self._before[index].copy_(value)
        self._kept = {}

    def take_back(self) -> None:
        """The step was broken off."""
        self.undo()
        self._kept = {}

    def undo(self) -> None:
        """Make the buffers what they were before the step; `apply` can still put in the new ones."""
        self._write(self._find_changed() | self._kept.keys(), self._before)

    def _write(self, indices: Iterable[int], values: list[torch.Tensor] | Mapping[int, torch.Tensor]) -> None:
        with torch.no_grad():
            for index in indices:
                module, name = self._slots[index]
                tensor = self._tensors[index]
                if getattr(module, name) is not tensor:
                    setattr(module, name, tensor)
                tensor.copy_(values[index])
                if tensor.numel() > SMALL:
                    self._counts[index] = versions.count_changes(tensor)

    def _read(self, index: int) -> torch.Tensor:
        module, name = self._slots[index]
        tensor: torch.Tensor = getattr(module, name)
        return tensor

    def _find_changed(self) -> set[int]:
        """The buffers that may have changed since they were last written."""
        return {index for index in range(len(self._tensors)) if self._may_have_changed(index)}

    def _may_have_changed(self, index: int) -> bool:
        tensor = self._tensors[index]
        if tensor.numel() <= SMALL or self._read(index) is not tensor:
            return True
        count = self._counts[index]
        return count is None or versions.count_changes(tensor) != count


def _to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
