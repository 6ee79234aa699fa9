"""Data for a world whose size changes: every sample of an epoch is used exactly once, in batches of a constant size.

The order of an epoch depends on the seed and the epoch, never on the world. A *global batch* is the next
`global_batch_size` samples of that order, divided over the world. Each rank processes its share (shares differ by at
most one sample) in *micro batches* of at most `micro_batch_size`. All ranks have the same number of micro batches, so
their collectives always match. The state is the epoch and the number of samples used: saved in a checkpoint and loaded
in a world of any size, it continues with the next sample.

At the end of an epoch in a large world, a share can be empty. That rank then loads one sample with `scale` 0, which
does not contribute to the gradient.

With `virtual_ranks`, a global batch is divided over these instead, so that the micro batches and their random numbers
do not depend on the world at all (`virtual_plan`, `VirtualRanks`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import Sampler

from elasticjob.context.context import current
from elasticjob.data import streams, virtual_plan
from elasticjob.data.virtual_plan import Micro, split_share
from elasticjob.errors import ConfigurationError

T = TypeVar("T")

_log = logging.getLogger("elasticjob.data.samplers")
_REPEATS = (
    "this rank's share of a batch is empty, and the loader repeats a sample so that all ranks make as many passes:"
    " leave it out of an evaluation, with `for micro, batch in zip(sampler.plan(), loader):` and micro.samples."
)
_STANDS = (
    "the sampler's position is saved, and has not moved while the loop has read its batches: a restart trains them"
    " again. Loop over sampler.steps(loader), or call sampler.advance() after each step of the optimizer, before the"
    " save."
)
_FETCHED = 256  # batches that loaders read ahead of the first step, at most
_LOOP = "`for epoch in range(sampler.epoch, epochs): sampler.set_epoch(epoch)`"
_ONLY_THIS = (
    "a loop with sampler.steps(loader) needs DataLoader(dataset, batch_sampler=sampler), whole and without"
    " sampler= and batch_size=. To end it early, leave it with `break`."
)
_END = object()


def plan_epoch(
    length: int, used: int, global_batch: int, micro_batch: int, rank: int, world_size: int, drop_last: bool = False
) -> Iterator[Micro]:
    """The micro batches of `rank` for the rest of an epoch: pure, and equally many on every rank.

    `length`, `used` (of this epoch so far), `global_batch` and `micro_batch` are in samples.
    """
    parts: list[Micro] = []
    while used < length:
        batch = min(global_batch, length - used)
        if batch < global_batch and drop_last:
            return
        if not parts or parts[0].batch != batch:  # all but the last one are alike
            parts = split_batch(batch, micro_batch, rank, world_size)
        for start, stop, scale, ends_step, *_ in parts:
            yield Micro(used + start, used + stop, scale, ends_step, batch)
        used += batch


def split_batch(batch: int, micro_batch: int, rank: int, world_size: int) -> list[Micro]:
    """The micro batches of `rank` in the first global batch of an epoch, which has `batch` samples."""
    largest = -(-batch // world_size)
    passes = -(-largest // micro_batch)
    start, stop = split_share(batch, world_size, rank)
    spans = [split_share(stop - start, passes, index) for index in range(passes)]
    return [
        Micro(
            start=start + low,
            stop=start + high,
            # DDP divides the sum over the ranks by the world size; the mean loss is over this micro batch.
            scale=(high - low) * world_size / batch,
            ends_step=index == passes - 1,
            batch=batch,
        )
        for index, (low, high) in enumerate(spans)
    ]


@runtime_checkable
class Ordered(Protocol):
    """A dataset that decides in which order its samples are read, such as `ParquetDataset`.

    The samples of each global batch are read in ascending order, so that a rank's are near each other.
    """

    def epoch_order(self, generator: torch.Generator) -> list[int]:
        """All indices in the order of an epoch, which depends on nothing but the generator."""


class ElasticDistributedSampler(Sampler[list[int]]):
    """A batch sampler that continues where the epoch stopped, whatever the world size was before.

        sampler = ElasticDistributedSampler(dataset, global_batch_size=256, micro_batch_size=32)
        loader = DataLoader(dataset, batch_sampler=sampler)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for micro, (x, y) in sampler.steps(loader):
                with micro.sync(model):
                    (loss_function(model(x), y) * micro.scale).backward()
                if micro.ends_step:
                    optimizer.step()
                    optimizer.zero_grad()

    `loss_function` returns the mean over its batch. The position advances with the last micro batch of a step: save a
    checkpoint after `optimizer.step()`, inside the loop. A loop without `steps` calls `advance()`.

    `data` is the dataset or its length. A dataset with `epoch_order(generator)`, as `ParquetDataset`, decides the order
    of its indices, and those of a global batch are then read in ascending order. Batch sizes are in samples;
    `micro_batch_size` defaults to a rank's whole share in the present world. `rank` and `world_size` default to the
    launcher's; in a session they follow its worlds, for each sampler of the script. With `virtual_ranks`, each global
    batch is divided over this number of virtual ranks, whatever the size of the world (see `VirtualRanks`). Raises
    ConfigurationError for an empty dataset and for an invalid size or rank.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        virtual_ranks: int | None = None,
    ) -> None:
        self._length = data if isinstance(data, int) else len(data)
        self._ordered = data if isinstance(data, Ordered) else None
        self._rank, self._world_size = rank, world_size
        self._global_batch_size = self._first_batch_size = global_batch_size
        self.batch_was_set = False  # since: the script lets it grow
        self.virtual_ranks = virtual_ranks
        self._micro_batch_size = micro_batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self.epoch = 0
        self.used = 0
        self._is_loaded = False  # the position is a saved one, and the script has not said yet where it goes on
        self._is_read = False  # the script has read this epoch to its end
        self._is_weighted = False
        self._read = self._read_from = 0  # the batches that were read, and the position at which that began
        self._has_stood = self._was_told = False
        self._check()

    @property
    def rank(self) -> int:
        """This process's rank in the world: in a session, in the present one."""
        return current().rank if self._rank is None else self._rank

    @rank.setter
    def rank(self, rank: int) -> None:
        self._rank = rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share each global batch: in a session, those of the present world."""
        return current().world_size if self._world_size is None else self._world_size

    @world_size.setter
    def world_size(self, size: int) -> None:
        self._world_size = size

    @property
    def micro_batch_size(self) -> int:
        """Samples of one pass, at most. By default a rank's share of the first global batch, in the present world: it
        has to be the same on all ranks, however long each of them has been there.
        """
        if self._micro_batch_size:
            return self._micro_batch_size
        parts = self.world_size if self.virtual_ranks is None else max(1, self.virtual_ranks)
        return max(1, -(-self._first_batch_size // parts))

    @micro_batch_size.setter
    def micro_batch_size(self, samples: int) -> None:
        self._micro_batch_size = samples

    @property
    def global_batch_size(self) -> int:
        """Samples of a step of the optimizer, over all ranks. A script may set it in each world."""
        return self._global_batch_size

    @global_batch_size.setter
    def global_batch_size(self, samples: int) -> None:
        self._global_batch_size = samples
        self.batch_was_set = True

    def _check(self) -> None:
        if self.global_batch_size < 1 or self.micro_batch_size < 1:
            raise ConfigurationError("global_batch_size and micro_batch_size must be at least 1.")
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(f"rank={self.rank} does not fit world_size={self.world_size}: ranks start at 0.")
        if self.virtual_ranks is not None and not 1 <= self.virtual_ranks <= self.global_batch_size:
            raise ConfigurationError(
                f"virtual_ranks={self.virtual_ranks} must be from 1 to global_batch_size={self.global_batch_size}: "
                "each has a part of the batch."
            )
        if self._length < 1:
            raise ConfigurationError("the dataset is empty: there is nothing to sample.")
        if self._drop_last and self._length < self.global_batch_size:
            raise ConfigurationError(
                f"drop_last=True with {self._length} samples and global_batch_size={self.global_batch_size} leaves no "
                "batch: make global_batch_size smaller."
            )

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch. The current epoch keeps its position, so a resumed loop may always call this.

        Raises ConfigurationError if a resumed loop begins before the position that was loaded: it would train again,
        and in a session the other ranks do not.
        """
        if epoch < self.epoch and self._is_loaded:
            raise ConfigurationError(
                f"set_epoch({epoch}) goes back from epoch {self.epoch}, where training goes on: begin the loop there,"
                f" with {_LOOP}."
            )
        self._is_loaded = False
        if epoch != self.epoch:
            self._has_stood = self._read > 0 and self.used == self._read_from
            self.epoch = epoch
            self.used = self._read = 0
            self._is_read = False

    def go_on_in(self, epoch: int) -> None:
        """Go to an epoch: to the present position in it, or to its start from an earlier one, or else to its end."""
        if epoch < self.epoch:
            self.used = self._length
        elif epoch > self.epoch:
            self.used = 0
        self.epoch = epoch
        self._is_read = False

    def begin_epoch(self) -> None:
        """The script begins to read this epoch. Raises ConfigurationError if it has read it before."""
        if self._is_read:
            raise ConfigurationError(
                f"epoch {self.epoch} is over, and the loop begins it again, without a batch: call set_epoch before each"
                f" epoch, as in {_LOOP}. An evaluation reads `zip(sampler.plan(), loader)`, as often as it wants."
            )

    def order(self) -> list[int]:
        """The sample indices of this epoch in order, for the whole world."""
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
        if self._ordered is not None:
            return self._ordered.epoch_order(generator)
        return list(torch.randperm(self._length, generator=generator).tolist())

    def plan(self) -> Iterator[Micro]:
        """The remaining micro batches of this rank in this epoch."""
        self._is_weighted = True  # by somebody who knows which samples count
        return self._plan()

    def _plan(self) -> Iterator[Micro]:
        if self.virtual_ranks is not None:
            return virtual_plan.plan_epoch(
                virtual_plan.Place(self.virtual_ranks, self.rank, self.world_size),
                (self._seed, self.epoch),
                self._length,
                self.used,
                self.global_batch_size,
                self.micro_batch_size,
                self._drop_last,
            )
        return plan_epoch(
            self._length,
            self.used,
            self.global_batch_size,
            self.micro_batch_size,
            self.rank,
            self.world_size,
            self._drop_last,
        )

    def __iter__(self) -> Iterator[list[int]]:
        self.begin_epoch()
        order = self.order()
        self._read, self._read_from = 0, self.used
        begin, batch = self.used, list[int]()
        for micro in self._plan():
            self._read += 1
            if not batch:
                batch = order[begin : begin + micro.batch]
                if self._ordered is not None:
                    batch.sort()
            # An empty share loads one sample anyway; its scale is 0.
            indices = batch[micro.start - begin : micro.stop - begin] or batch[:1]
            if micro.ends_step:
                begin, batch = begin + micro.batch, []
            if not micro.samples and not self._is_weighted:
                self._is_weighted = True  # it was told
                _log.warning(_REPEATS)
            yield streams.SeededBatch(indices, micro.stream) if micro.stream else indices

    def __len__(self) -> int:
        """The number of micro batches left in this epoch, equal on every rank."""
        left = self._length - self.used
        full, rest = divmod(left, self.global_batch_size)
        return full * self._passes(self.global_batch_size) + (0 if self._drop_last else self._passes(rest))

    def _passes(self, batch: int) -> int:
        if self.virtual_ranks is not None:
            largest = -(-batch // self.virtual_ranks)
            return -(-self.virtual_ranks // self.world_size) * -(-largest // self.micro_batch_size)
        largest = -(-batch // self.world_size)
        return -(-largest // self.micro_batch_size)

    def steps(self, loader: Iterable[T]) -> Iterator[tuple[Micro, T]]:
        """Each micro batch with its data. The position advances with the last micro batch of each step.

        Raises ConfigurationError if the loader yields more or fewer batches than are left, as it must use this sampler;
        and if this epoch was read to its end before: call `set_epoch` for each.
        """
        self.begin_epoch()
        items = iter(loader)
        for micro in self._seeded_plan():
            item = next(items, _END)
            if item is _END:
                raise ConfigurationError(f"the loader has fewer batches than the sampler has left: {_ONLY_THIS}")
            if micro.ends_step:
                self.advance(micro.batch)
            yield micro, item  # type: ignore[misc]
        if next(items, _END) is not _END:
            raise ConfigurationError(f"the loader has more batches than the sampler has left: {_ONLY_THIS}")
        self._is_read = True

    def _seeded_plan(self) -> Iterator[Micro]:
        """The plan; the random numbers of a virtual rank begin before its batch is loaded."""
        for micro in self.plan():
            if micro.stream:
                streams.start(micro.stream)
            yield micro

    def advance(self, samples: int | None = None) -> None:
        """Mark samples as used after the optimizer stepped; by default one global batch."""
        step = self.global_batch_size if samples is None else samples
        self.used = min(self._length, self.used + step)
        self._has_stood = False
        self._is_read = self.is_over()

    def state_dict(self) -> dict[str, int]:
        """The position, which does not depend on the world size."""
        if self._has_stood or (self._read > _FETCHED and self.used == self._read_from):
            self._tell_that_it_stands()
        return {"epoch": self.epoch, "used": self.used, "seed": self._seed, "length": self._length}

    def _tell_that_it_stands(self) -> None:
        of_a_step = 2 * self._passes(self.global_batch_size)  # a step may have many micro batches
        if not self._was_told and (self._has_stood or self._read > _FETCHED + of_a_step):
            self._was_told = True
            _log.warning(_STANDS)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position saved in a world of any size. The end of an epoch is the start of the next one.

        The saved seed takes the place of another one, with a warning: the rest of the epoch would be of another order.
        Raises ConfigurationError if the position belongs to a dataset of another length.
        """
        if state["length"] != self._length:
            raise ConfigurationError(
                f"the saved position is in a dataset of {state['length']} samples, this one has {self._length}: "
                "use the same dataset, or start the epoch again without loading the sampler."
            )
        if state["seed"] != self._seed:
            _log.warning(
                "The saved position is in an order by seed=%s: it replaces seed=%s.", state["seed"], self._seed
            )
        self.epoch, self.used, self._seed = state["epoch"], state["used"], state["seed"]
        self._is_loaded, self._is_read = True, False
        if self.is_over():
            self.epoch, self.used = self.epoch + 1, 0

    def is_over(self) -> bool:
        """Whether all samples of this epoch are used."""
        left = self._length - self.used
        return left <= 0 or (self._drop_last and left < self.global_batch_size)


def learning_rate_factor(global_batch: int, reference_batch: int, rule: str = "linear") -> float:
    """The factor for the learning rate at this global batch size; 1 while the batch size is constant.

    Batch sizes are in samples. `rule`: `linear` for SGD, `sqrt` for Adam and its variants, `none`. Raises
    ConfigurationError for another rule or an empty batch.
    """
    if global_batch < 1 or reference_batch < 1:
        raise ConfigurationError("batch sizes must be at least 1.")
    ratio = global_batch / reference_batch
    rules = {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}
    if rule not in rules:
        raise ConfigurationError(f"rule={rule!r} is unknown: use linear, sqrt or none.")
    return rules[rule]


def scale_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply the learning rates of an optimizer by a factor. A further call replaces the previous factor.

    The factor is kept in the optimizer's state, so it stays correct when a checkpoint is loaded in another world. Call
    this before a learning-rate scheduler is created, or after its state is loaded.
    """
    for group in optimizer.param_groups:
        change = factor / group.get("elasticjob_factor", 1.0)
        group["lr"] = group["lr"] * change
        if "initial_lr" in group:
            group["initial_lr"] = group["initial_lr"] * change
        group["elasticjob_factor"] = factor
