"""Whole objects: the parameters of a model, the state of an optimizer, whatever can be pickled.

Only what a script itself sends as an object is unpickled, as Horovod promises it for any object. A state is read as the
file of a commit is: without running code.
"""

from __future__ import annotations

import copy
import io
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives import messages
from elasticjob.collectives.explain import explained
from elasticjob.collectives.members import group_device
from elasticjob.compat.horovod import calls, world
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import optimizers

_PIECE_BYTES = 64 << 20


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The object of rank `root_rank`, pickled and sent to every rank."""
    world.require(process_set)
    box = [obj]
    with explained("broadcast_object"):
        dist.broadcast_object_list(box, root_rank)
    return obj if world.rank() == root_rank else box[0]


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """The objects of all ranks, pickled, in rank order."""
    world.require(process_set)
    every: list[Any] = [None] * world.size()
    with explained("allgather_object"):
        dist.all_gather_object(every, obj)
    return every


def broadcast_state(state: Any, root_rank: int) -> Any:
    """The state of rank `root_rank`, with its tensors on the host: what `torch.load()` reads with `weights_only=True`.

    Raises ConfigurationError on the other ranks if it has anything else.
    """
    is_root = world.rank() == root_rank
    file, device = io.BytesIO(), group_device(None)
    if is_root:
        torch.save(state, file)
    size = messages.broadcast_json(file.tell(), root_rank)
    # The buffer is writable, and is of no further use to the file.
    sent = torch.frombuffer(file.getbuffer(), dtype=torch.uint8) if is_root else torch.empty(size, dtype=torch.uint8)
    for piece in torch.split(sent, _PIECE_BYTES):
        there = piece.to(device)
        with explained("broadcast_state"):
            dist.broadcast(there, root_rank)
        piece.copy_(there)
    if is_root:
        return state
    try:
        return torch.load(io.BytesIO(messages.to_bytes(sent)), map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no class of its own for it
        why = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"the state of rank {root_rank} cannot be read without running code: {why}") from error


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0, prefix: str | None = None
) -> None:
    """Overwrite these tensors with those of rank `root_rank`: a `state_dict()`, or `named_parameters()`.

    Raises ConfigurationError on every rank if the ranks have different ones.
    """
    world.require()
    pairs = params.items() if isinstance(params, Mapping) else params
    tensors = sorted(((name, one) for name, one in pairs if torch.is_tensor(one)), key=lambda pair: pair[0])
    every = messages.all_gather_json([[name, f"{one.dtype} {tuple(one.shape)}"] for name, one in tensors])
    for other, found in enumerate(every):
        if found != every[0]:
            differing = find_differing(found, every[0]) or ["their order"]
            raise ConfigurationError(
                f"broadcast_parameters: rank {other} and rank 0 have different tensors: {', '.join(differing[:5])}."
                " Make the same model on all ranks."
            )
    handles = [calls.broadcast_async_(one.detach(), root_rank) for _, one in tensors]
    for handle in handles:
        handle.wait()


def find_differing(a: list[list[str]], b: list[list[str]]) -> list[str]:
    """The names that only one of the two lists has, or has with another kind. Pure."""
    return sorted({name for name, _ in set(map(tuple, a)) ^ set(map(tuple, b))})


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None) -> None:
    """Give the optimizer of every rank the state of rank `root_rank`: also its learning rate and other settings."""
    world.require()
    is_root = world.rank() == root_rank
    state = broadcast_state(to_host(optimizer.state_dict()) if is_root else None, root_rank)
    if not is_root:
        optimizers.load_state(optimizer, state)


def to_host(state: Any) -> Any:
    """A copy of tensors, lists and dictionaries: tensors in the memory of the host, numbers of numpy as Python's."""
    if torch.is_tensor(state):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        copied = copy.copy(state)  # also the versions that a model's state_dict() has as an attribute
        copied.update({key: to_host(one) for key, one in state.items()})
        return copied
    if type(state) in (list, tuple):
        return type(state)(to_host(one) for one in state)
    return state.item() if is_of_numpy(state) else copy.copy(state)


def is_of_numpy(one: Any) -> bool:
    """Whether this is a number of numpy, such as a mean, which Python has as well."""
    kind = type(one)
    return kind.__module__ == "numpy" and (isinstance(one, numbers.Number) or kind.__name__ in ("bool", "bool_"))
