"""Virtual ranks: training that gives the same bits in a world of any size.

    sampler = ElasticDistributedSampler(dataset, global_batch_size=256, virtual_ranks=8)
    ranks = VirtualRanks(model, sampler)                 # a plain model or an FSDP2 one, not a DDP
    for micro, (x, y) in sampler.steps(loader):
        with ranks.turn(micro):
            ranks.backward(loss_function(model(x), y))   # a mean over the batch
        if micro.ends_step:
            optimizer.step()
            optimizer.zero_grad()

The job is defined over `virtual_ranks`, and a world of any size computes it: each rank takes the turns of its virtual
ranks in order. A virtual rank has its own samples, random numbers (`streams`), gradient and, during a step, buffers
(`buffers`). Gradients are added in a fixed tree (`collectives.tree`). A session does all of this by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import tree
from elasticjob.data import determinism, streams, traces
from elasticjob.data.batch_growth import BatchGrowth
from elasticjob.data.buffers import SharedBuffers
from elasticjob.data.sharded_leaves import ShardedLeaves
from elasticjob.data.virtual_plan import Micro, Place, find_leaf_sizes
from elasticjob.errors import ConfigurationError

Gradients = list[torch.Tensor | None]


class VirtualRanks:
    """Adds up what the virtual ranks of one model compute. Create it on all ranks of a world, after the process group.

    The parameters of a plain model are made equal to rank 0's. Raises ConfigurationError if the sampler has no virtual
    ranks, and for a DistributedDataParallel, which would add the gradients by itself.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        sampler: Any,
        *,
        growth: BatchGrowth | None = None,
        send: bool = True,
        optimizers: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        """`growth` learns what the gradients are like. `send=False`: the parameters are already equal on all ranks.
        All ranks should use the same implementations of the `optimizers`: see `doubts`.
        """
        if getattr(sampler, "virtual_ranks", None) is None:
            raise ConfigurationError("VirtualRanks needs a sampler with virtual_ranks=.")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ConfigurationError("VirtualRanks takes the plain model, not a DistributedDataParallel.")
        _check_dense(model)
        self.loss: float | None = None  # the mean over the last global batch, if `backward` was used
        self._model = model
        self._all_parameters = list(model.parameters())
        self._parameters = self._find_trainable()  # in this step
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self.doubts: list[str] = determinism.report(device, optimizers)  # why another world may compute other bits
        self._sampler = sampler
        self._place = Place(sampler.virtual_ranks, *_find_rank())
        if (sampler.rank, sampler.world_size) != (self._place.rank, self._place.world_size):
            raise ConfigurationError(
                f"the sampler is of rank {sampler.rank} of {sampler.world_size}, and this is rank {self._place.rank} of"
                f" {self._place.world_size}: leave its rank and world_size out."
            )
        self._sharded = ShardedLeaves.find(model, self._place)
        if send and self._sharded is None:
            _send_from_first(model)
        self.buffers = SharedBuffers(model)
        self._trace = traces.find_trace(model)
        self._micro: Micro | None = None  # whose turn it is
        self._position = (0, 0)  # of its gradient in the tree
        self._losses: dict[int, torch.Tensor] = {}
        self._squares: dict[int, torch.Tensor] = {}  # by turn: the squared norm of the gradient, if it is wanted
        self._growth = growth if growth is not None and growth.measures else None
        if self._growth is not None and self._sharded is not None:
            raise ConfigurationError("rule='adascale' does not work with a sharded model: use linear or sqrt.")
        self._tree: tree.TreeSum[Gradients] = tree.TreeSum(0, _add)

    @contextlib.contextmanager
    def turn(self, micro: Micro) -> Iterator[None]:
        """The forward and backward pass of one virtual rank. After the last one of a step, gradients are complete."""
        self.begin(micro)
        yield
        self.finish()
        if micro.ends_step:
            self.commit()

    def backward(self, loss: torch.Tensor) -> None:
        """Differentiate the mean loss of the batch. In the last turn of a step, also add up all gradients."""
        micro = self._current()
        # A filler's loss counts as 0 even where it is not a number; the sum is then known to be wanted on all ranks.
        self._losses[micro.turn] = loss.detach() * micro.scale if micro.samples else torch.zeros_like(loss.detach())
        torch.autograd.backward(loss * micro.scale)
        self.finish()

    # For sessions, in which a turn includes the optimizer's step.

    def begin(self, micro: Micro) -> None:
        """Begin a turn."""
        if micro.turn == 0:
            self._losses, self._squares = {}, {}
            self._tree = tree.TreeSum(self._place.virtual_ranks * micro.parts, _add)
            self._parameters = self._find_trainable()
            for parameter in self._all_parameters:
                parameter.grad = None  # also of one that was frozen since
        leaf = micro.virtual * micro.parts + micro.part
        self._position = (0, leaf)
        # autograd adds to the gradient of the left sibling, if that is here: it costs less while the new one is cached.
        alone = self._trace.active or self._growth is not None  # somebody wants to see the new one by itself
        left = self._tree.pop_left((0, leaf)) if micro.samples and not alone else None
        if left is not None:
            self._position = (1, leaf // 2)
        for index, parameter in enumerate(self._parameters):
            parameter.grad = None if left is None else left[index]
        if micro.part == 0:
            self.buffers.begin(first=micro.turn == 0)
        if self._sharded is not None:
            self._sharded.begin(micro)
        self._micro = micro
        self._trace.begin(micro)

    def finish(self) -> None:
        """The backward pass is over: take its gradient, and in the last turn add up all. A second call is harmless."""
        micro, self._micro = self._micro, None
        if micro is None:
            return
        self._trace.compute(micro, self._parameters)
        if self._growth is not None and micro.samples:
            self._squares[micro.turn] = self._find_square() / micro.scale**2
        if micro.virtual == 0 and micro.part == micro.parts - 1:
            self.buffers.keep()
        if self._sharded is not None:
            self._sharded.end(micro)
        elif micro.virtual >= 0:
            self._tree.push(self._take(micro), self._position)
        if not micro.ends_step:
            return
        self._check_trainable()
        self._add_up(micro)
        self.buffers.exchange()
        self.buffers.apply()
        self._trace.reduce(micro, self._parameters, self.loss)
        # The optimizer, and what else follows, draws from a stream that is the same on all ranks.
        key = (self._sampler.state_dict()[name] for name in ("seed", "epoch", "used"))
        streams.start(tuple(key))

    def commit(self) -> None:
        """The step is complete."""
        self.buffers.commit()

    def take_back(self) -> None:
        """The step was broken off."""
        self._micro = None
        self.buffers.take_back()

    def _current(self) -> Micro:
        if self._micro is None:
            raise ConfigurationError("backward() belongs into a turn, once: call it inside `with turn(micro):`.")
        return self._micro

    def _find_trainable(self) -> list[torch.nn.Parameter]:
        return [one for one in self._all_parameters if one.requires_grad]

    def _check_trainable(self) -> None:
        known = {id(one) for one in self._parameters}
        if any(one.requires_grad and one.grad is not None and id(one) not in known for one in self._model.parameters()):
            raise ConfigurationError(
                "a parameter has become trainable inside of a step, or was added to the model, and nobody adds up its"
                " gradient. Make all parameters before the session or VirtualRanks, and set requires_grad before the"
                " step begins."
            )

    def _take(self, micro: Micro) -> Gradients:
        """This turn's gradient, which autograd leaves to us."""
        if not micro.samples:
            return [None] * len(self._parameters)
        return [parameter.grad for parameter in self._parameters]

    def _add_up(self, micro: Micro) -> None:
        """Add the gradients and the losses of all turns of all ranks."""
        spans = self._place.spans(micro.parts)
        scalars = self._add_scalars(*spans[self._place.rank], spans[-1][1])
        if self._sharded is not None:
            total = scalars[0] if tree.is_alone() else tree.sum_flat(scalars, spans, spans[-1][1])
        elif tree.is_alone():
            total = scalars[0]
            for parameter, gradient in zip(self._parameters, self._tree.total(), strict=True):
                # Other worlds have views of a flat tensor: what reads them in the order of memory must see the same.
                parameter.grad = None if gradient is None else gradient.contiguous().add_(0.0)
        else:
            total = self._exchange(spans, scalars)
        self.loss = float(total[0].item()) if self._losses else None
        if self._growth is not None:
            sizes = find_leaf_sizes(micro.batch, self._place.virtual_ranks, micro.parts)
            small_batch = len(sizes) / sum(1 / size for size in sizes)
            self._growth.observe(total[1].item() / len(sizes), self._find_square().item(), small_batch, micro.batch)

    def _find_square(self) -> torch.Tensor:
        """The squared norm of the gradient."""
        norms = [torch.linalg.vector_norm(one.grad) for one in self._parameters if one.grad is not None]
        return torch.stack(norms).square().sum() if norms else torch.zeros((), device=self._parameters[0].device)

    def _exchange(self, spans: list[tuple[int, int]], scalars: list[torch.Tensor]) -> torch.Tensor:
        """Add the gradients of all ranks, bucket by bucket, and the scalars with them, which are returned."""
        nodes = [gradients for _, gradients in self._tree.nodes] or [[None] * len(self._parameters)]
        # Which parameters have a gradient at all is added too: no rank knows it of the others.
        flags = [scalars[0].new_tensor([float(one is not None) for one in gradients]) for gradients in nodes]
        rows = [torch.cat(pair) for pair in zip(scalars, flags, strict=True)]
        shapes = [*(parameter.detach() for parameter in self._parameters), rows[0]]
        sums: dict[int, torch.Tensor] = {}
        for bucket in tree.make_buckets(shapes):
            likes = [shapes[index] for index in bucket]
            whole = [[*gradients, row] for gradients, row in zip(nodes, rows, strict=True)]
            flat = [tree.pack([one[index] for index in bucket], likes, self._place.world_size) for one in whole]
            sums |= zip(bucket, tree.unpack(tree.sum_flat(flat, spans, spans[-1][1]), likes), strict=True)
        total = sums.pop(len(self._parameters))
        present = total[scalars[0].numel() :].tolist()
        for index, parameter in enumerate(self._parameters):
            parameter.grad = sums[index] if present[index] else None
        return total

    def _add_scalars(self, first: int, last: int, leaves: int) -> list[torch.Tensor]:
        """The losses of this rank's nodes, and the squared norms if they are wanted."""
        sources = [self._losses] if self._growth is None else [self._losses, self._squares]
        nothing = torch.zeros((), device=self._parameters[0].device)
        scalars: tree.TreeSum[torch.Tensor] = tree.TreeSum(leaves, tree.add_tensors)
        for leaf in range(first, last):
            values = torch.stack([source.get(leaf - first, nothing).float().reshape(()) for source in sources])
            scalars.push(values, (0, leaf))
        return [value for _, value in scalars.nodes] or [nothing.new_zeros(len(sources))]


def _check_dense(model: torch.nn.Module) -> None:
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = [name for name, one in model.named_modules() if isinstance(one, kinds) and one.sparse]
    if sparse:
        raise ConfigurationError(
            f"the gradient of {sparse[0]!r} is sparse, and virtual ranks add up dense ones: make it with sparse=False,"
            " and train it with another optimizer than SparseAdam."
        )


def _find_rank() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _add(left: Gradients, right: Gradients) -> Gradients:
    """Add in place. A gradient that one side lacks counts as zeros."""
    return [tree.add_present(one, other) for one, other in zip(left, right, strict=True)]


def _send_from_first(model: torch.nn.Module) -> None:
    if tree.is_alone():
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
