"""A rank's part of a sharded model in host memory: taken from it, packed to be sent, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elasticjob.collectives import plaindata, skeletons
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import host_memory
from elasticjob.torchcompat.sharding import DTensor, Replicate, Shard

_LOCAL = "elasticjob.shard"  # the key that marks a shard in the data of a state
_ALIGNMENT = 64  # bytes


def count_shards(world_size: int, shards: int | None) -> int:
    """The number of shards: the smallest divisor of the world size that is at least `shards`."""
    least = world_size if shards is None else min(shards, world_size)
    return next(n for n in range(least, world_size + 1) if world_size % n == 0)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()


def take_local(value: Any, take: Callable[[torch.Tensor], torch.Tensor] = _copy) -> Any:
    """A state with this rank's part of each sharded tensor instead of it: a copy in host memory, or what `take` makes.

    Raises ValueError for a placement that is not supported.
    """
    if isinstance(value, DTensor):
        dim = _find_dim(value)
        return {_LOCAL: take(value.to_local()), "dim": dim, "length": 0 if dim < 0 else value.shape[dim]}
    if isinstance(value, torch.Tensor):
        return take(value)
    if isinstance(value, dict):
        return {key: take_local(item, take) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([take_local(item, take) for item in value])
    return value


def find_span(length: int, count: int, index: int) -> tuple[int, int]:
    """The rows of part `index` of `count`, as torch cuts a dimension of this length. Pure."""
    each = -(-length // count)
    return min(index * each, length), min((index + 1) * each, length)


def mark_whole(tensor: torch.Tensor) -> Any:
    """A gathered tensor, in the place of the sharded one in a state."""
    return {_LOCAL: tensor, "dim": -1, "length": 0}


def find_range(tensor: Any) -> tuple[int, int, int] | None:
    """The dimension in which a sharded tensor is cut, and this rank's rows of it; -1 and no rows if it has all.

    None if it is cut in another way, which all ranks find alike. Raises ConfigurationError for rows that torch would
    not have cut so.
    """
    try:
        dim = _find_dim(tensor)
    except ValueError:
        return None
    if dim < 0:
        return (-1, 0, 0)
    mesh, last = tensor.device_mesh, tensor.device_mesh.ndim - 1
    start, stop = find_span(tensor.shape[dim], mesh.size(last), mesh.get_local_rank(last))
    if tensor.to_local().shape[dim] != stop - start:
        found = tensor.to_local().shape[dim]
        raise ConfigurationError(
            f"Session(build=...): this rank has {found} of {tensor.shape[dim]} rows of a tensor, and not"
            f" {stop - start}. Let fully_shard or distribute_tensor cut it."
        )
    return (dim, start, stop)


def _find_dim(tensor: Any) -> int:
    """The sharded dimension; -1 if every rank has the whole tensor."""
    cuts = [placement for placement in tensor.placements if not isinstance(placement, Replicate)]
    if not cuts:
        return -1
    if len(cuts) > 1 or type(cuts[0]) is not Shard or tensor.placements[-1] is not cuts[0]:
        raise ValueError(f"a tensor with the placements {tuple(tensor.placements)} cannot be put together")
    return int(cuts[0].dim)


def find_local(value: Any) -> Any:
    """A state with this rank's part of each sharded tensor instead of it, in the same memory."""
    if isinstance(value, DTensor):
        return value.to_local().detach()
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {key: find_local(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([find_local(item) for item in value])
    return value


def put_back(part: Any, present: Any) -> Any:
    """The state whose `find_local` this part was, in the same world: sharded tensors are those of the `present` state,
    overwritten.
    """
    if isinstance(present, DTensor):
        present.to_local().detach().copy_(part)
        return present
    if isinstance(part, dict):
        return {key: put_back(item, present[key]) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return type(part)([put_back(*pair) for pair in zip(part, present, strict=True)])
    return part


Path = tuple[Any, ...]


@dataclass(frozen=True)
class Leaf:
    """A tensor of the whole model, which is cut along a dimension; -1: every part has all of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int = -1
    is_common: bool = True  # the ranks have it together; others, such as buffers, may differ by rank

    @property
    def size(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def find_tensors(part: Any) -> dict[Path, torch.Tensor]:
    """The tensors of a part, by their paths in the state."""
    found: dict[Path, torch.Tensor] = {}
    _walk(part, lambda path, tensor, *_: found.update({path: tensor}))
    return found


def find_leaves(part: Any) -> dict[Path, Leaf]:
    """The tensors of the whole model, by their paths in the state, from any part of it, or its skeleton."""
    found: dict[Path, Leaf] = {}

    def note(path: Path, tensor: torch.Tensor | skeletons.Slot, dim: int = -1, length: int = -1) -> None:
        shape = [length if at == dim else own for at, own in enumerate(tensor.shape)]
        found[path] = Leaf(tuple(shape), tensor.dtype, dim, length >= 0)

    _walk(part, note)
    return found


def put_together(held: Sequence[Any]) -> Any:
    """The state of the whole model, from all of its parts in their order. What is not cut is that of the first one."""
    leaves, tensors = find_leaves(held[0]), [find_tensors(part) for part in held]

    def make(path: Path) -> torch.Tensor:
        dim = leaves[path].dim
        return tensors[0][path] if dim < 0 else torch.cat([one[path] for one in tensors], dim)

    return replace_tensors(held[0], make)


def replace_tensors(part: Any, make: Callable[[Path], Any], path: Path = ()) -> Any:
    """The state with what `make` returns for its path instead of each tensor. `path` is that of the part itself."""
    return _walk(part, lambda path, *_: make(path), path)


def _walk(part: Any, see: Callable[..., Any], path: Path = ()) -> Any:
    if isinstance(part, torch.Tensor | skeletons.Slot):
        return see(path, part)
    if isinstance(part, dict):
        if _LOCAL in part:
            return see(path, part[_LOCAL], part["dim"], part["length"])
        return {key: _walk(item, see, (*path, key)) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return type(part)([_walk(item, see, (*path, at)) for at, item in enumerate(part)])
    return part


@dataclass
class Parcel:
    """A rank's part in one piece of host memory: its plain data, and the bytes of its tensors.

    A device copies into it in the order of the training, while the processor goes on: `wait` before it is read.
    """

    text: str
    data: torch.Tensor  # uint8
    copied: Any = None  # the event after the copies of a device

    @classmethod
    def pack(cls, state: Any, buffer: torch.Tensor | None = None) -> Parcel:
        """Copy the local part of a state, into `buffer` if the size fits. Raises ValueError like `take_local`."""
        tensors: list[torch.Tensor] = []
        skeleton = skeletons.split(take_local(state, torch.Tensor.detach), tensors)
        size = sum(_align(slot.size) for slot in skeletons.find_slots(skeleton))
        device = next((one.device for one in tensors if one.is_cuda), None)
        parcel = cls(plaindata.encode(skeleton, "shards"), prepare(size, buffer, device))
        for piece, tensor in zip(parcel.view(skeleton), tensors, strict=True):
            piece.copy_(tensor, non_blocking=tensor.is_cuda)
        if device is not None:
            parcel.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            parcel.copied.record(torch.cuda.current_stream(device))
        return parcel

    def wait(self) -> None:
        """Wait until the device has copied everything."""
        if self.copied is not None:
            with torch.cuda.device(self.copied.device):  # a thread of copies is on another one
                self.copied.synchronize()

    def unpack(self) -> Any:
        """The part, of tensors that share the parcel's memory."""
        self.wait()
        skeleton = plaindata.decode(self.text)
        return skeletons.join(skeleton, list(self.view(skeleton)))

    def view(self, skeleton: Any) -> Iterator[torch.Tensor]:
        """The pieces of the memory as tensors, one for each slot of the skeleton."""
        start = 0
        for slot in skeletons.find_slots(skeleton):
            yield self.data[start : start + slot.size].view(slot.dtype).view(slot.shape)
            start += _align(slot.size)


def prepare(size: int, buffer: torch.Tensor | None, device: torch.device | None = None) -> torch.Tensor:
    """Host memory of so many bytes, which this device knows: `buffer` if it has the size."""
    if buffer is not None and buffer.numel() == size:
        return buffer
    data = torch.empty(size, dtype=torch.uint8)
    if device is not None and size:
        host_memory.register(data, device)
    return data


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
