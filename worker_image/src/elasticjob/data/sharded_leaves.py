"""FSDP2's gradients under virtual ranks: shards are exchanged turn by turn and added in the tree, not by NCCL or gloo.

FSDP2 reduces the gradient of each turn over all ranks, and so in an order that depends on their number. Here its
reduce-scatter is replaced (`set_custom_reduce_scatter`, a public method of torch): each rank receives its shard of
every rank's gradient, keeps the partial sums of each rank's subtrees, and returns the total in a step's last turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import tree
from elasticjob.data.virtual_plan import Micro, Place, find_samples
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import sharding


class ShardedLeaves:
    """The turns of all ranks of one sharded model."""

    def __init__(self, modules: Sequence[Any], parameters: Sequence[torch.Tensor], place: Place) -> None:
        self._place = place
        self._micro: Micro | None = None
        self._parameters = parameters
        self._sums: list[tree.TreeSum[torch.Tensor | None]] = []  # in a world of one, of each parameter
        self._alone = place.world_size == 1
        for module in modules:
            module.set_gradient_divide_factor(1.0)
            if not self._alone:
                module.set_custom_reduce_scatter(LeafExchange(self))

    @staticmethod
    def find(model: torch.nn.Module, place: Place) -> ShardedLeaves | None:
        """None for a model that is not sharded. Raises ConfigurationError if it cannot be added in a tree."""
        modules = sharding.find_fsdp_modules(model)
        if not modules:
            return None
        if not sharding.has_custom_reduce():
            raise ConfigurationError(
                f"virtual ranks of a sharded model need FSDP2's set_custom_reduce_scatter, which torch"
                f" {torch.__version__} does not have: use a newer torch, or Session(model=..., optimizer=...)."
            )
        parameters = [one for one in model.parameters() if one.requires_grad]
        mesh: Any = next((one.device_mesh for one in parameters if isinstance(one, sharding.DTensor)), None)
        if mesh is None or mesh.size() != place.world_size or (place.world_size > 1 and mesh.size(-1) == 1):
            raise ConfigurationError(
                "virtual ranks need a model that is sharded over all ranks of the world, or over at least two with"
                " copies: use Session(model=..., optimizer=...) for a model that is only copied."
            )
        return ShardedLeaves(modules, parameters, place)

    def begin(self, micro: Micro) -> None:
        """A turn begins."""
        self._micro = micro
        if micro.turn == 0:
            leaves = self._place.virtual_ranks * micro.parts
            self._sums = [tree.TreeSum(leaves, tree.add_present) for _ in self._parameters]

    @property
    def micro(self) -> Micro:
        assert self._micro is not None, "a turn has begun"
        return self._micro

    @property
    def place(self) -> Place:
        return self._place

    def end(self, micro: Micro) -> None:
        """A turn is over. In a world of one there is nothing to exchange: torch has left the gradients to us."""
        if not self._alone:
            return
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and not micro.samples:
                gradient = torch.zeros_like(gradient)
            total.push(gradient, (0, micro.virtual * micro.parts + micro.part))
            if micro.ends_step and (whole := total.total()) is not None:
                parameter.grad = whole + 0.0  # no negative zeros, as in larger worlds

    def leaf_of(self, rank: int) -> tuple[int, bool] | None:
        """The leaf that a rank computes in this turn, and whether it has samples; None for a filler."""
        micro, place = self.micro, self._place
        first, last = place.carried(rank)
        virtual = first + micro.turn // micro.parts
        if virtual >= last:
            return None
        start, stop = find_samples(micro.batch, place.virtual_ranks, virtual, micro.part, micro.parts)
        return virtual * micro.parts + micro.part, stop > start


class LeafExchange:
    """FSDP2's reduce-scatter of one group of parameters; see torch's `ReduceScatter`."""

    def __init__(self, leaves: ShardedLeaves) -> None:
        self._leaves = leaves
        self._sums: list[tree.TreeSum[torch.Tensor]] = []  # of each rank

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for the gradients of all shards, or for one shard."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any = None,
        async_op: bool = False,
    ) -> None:
        """`input_tensor` is this rank's gradient, one row for each shard; `output_tensor` is this rank's shard."""
        micro, place = self._leaves.micro, self._leaves.place
        shards, length = group.size(), output_tensor.numel()
        copies = place.world_size // shards  # consecutive ranks share a copy of the model
        sent = input_tensor.view(shards, length).repeat(copies, 1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received.view(-1), sent.view(-1))
        count = place.virtual_ranks * micro.parts
        if micro.turn == 0:
            self._sums = [tree.TreeSum(count, tree.add_tensors) for _ in range(place.world_size)]
        for rank, row in enumerate(received):
            found = self._leaves.leaf_of(rank)
            if found is not None:
                leaf, has_samples = found
                self._sums[rank].push(row.clone() if has_samples else torch.zeros_like(row), (0, leaf))
        output_tensor.zero_()
        if micro.ends_step and dist.get_rank() < shards:
            # torch then adds the copies' outputs, of which only the first is not zero.
            output_tensor.add_(self._add(count))

    def _add(self, count: int) -> torch.Tensor:
        total: tree.TreeSum[torch.Tensor] = tree.TreeSum(count, tree.add_tensors)
        for one in self._sums:
            for position, value in one.nodes:
                total.push(value, position)
        return total.total()
