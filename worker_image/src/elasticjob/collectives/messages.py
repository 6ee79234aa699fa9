"""Small messages between the ranks of a group: JSON in byte tensors.

torch's own object collectives unpickle what they receive, and gloo accepts it from any peer that connects: a rank must
not execute data that another one sends.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch
import torch.distributed as dist

from elasticjob.collectives.members import group_device
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import waits

MAX_BYTES = 64 << 20


def broadcast(text: str, source: int, group: Any = None) -> str:
    """The text of rank `source` (its rank in the world), on every rank of the group."""
    device = group_device(group)
    payload = to_tensor(text) if dist.get_rank() == source else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([payload.numel()], device=device)
    dist.broadcast(length, src=source, group=group)
    _check([int(length.item())])
    chunk = payload.to(device) if dist.get_rank() == source else payload.new_empty(int(length.item()), device=device)
    if chunk.numel():
        with waits.in_group(group):
            dist.broadcast(chunk, src=source, group=group)
    return to_text(chunk)


def broadcast_json(value: Any, source: int, group: Any = None) -> Any:
    """The value of `source`, after a round trip through JSON: tuples become lists, keys become strings."""
    return json.loads(broadcast(json.dumps(value) if dist.get_rank() == source else "", source, group))


def all_gather_json(value: Any, group: Any = None) -> list[Any]:
    """The value of each rank of the group, in rank order, after a round trip through JSON."""
    device, size = group_device(group), dist.get_world_size(group)
    payload = to_tensor(json.dumps(value)).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([payload.numel()], device=device), group=group)
    counts = [int(length.item()) for length in lengths]
    _check(counts)
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    padded[: payload.numel()] = payload
    chunks = [torch.empty_like(padded) for _ in range(size)]
    with waits.in_group(group):
        dist.all_gather(chunks, padded, group=group)
    return [json.loads(to_text(chunk[:count])) for chunk, count in zip(chunks, counts, strict=True)]


def all_gather_integers(mine: list[int], group: Any = None) -> list[list[int]]:
    """The integers (signed, 64 bits) of each rank of a group, in rank order: equally many on each. One collective."""
    row = torch.tensor(mine, dtype=torch.int64, device=group_device(group))
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    with waits.in_group(group):
        dist.all_gather(rows, row, group=group)
    return [one.tolist() for one in rows]


def _check(lengths: list[int]) -> None:
    """Raises the same error on every rank, so that none waits for data that another does not send."""
    if not all(0 <= length <= MAX_BYTES for length in lengths):
        raise ConfigurationError(f"a message of {max(lengths)} bytes: between ranks at most {MAX_BYTES} are sent.")


def to_tensor(text: str) -> torch.Tensor:
    """The bytes of a text."""
    data = text.encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def to_text(chunk: torch.Tensor) -> str:
    """The text of these bytes."""
    return to_bytes(chunk).decode()


def to_bytes(chunk: torch.Tensor) -> bytes:
    """The bytes of a tensor of them."""
    data = chunk.cpu()
    # Not tensor.numpy(): NumPy may not be installed.
    return ctypes.string_at(data.data_ptr(), data.numel()) if data.numel() else b""
