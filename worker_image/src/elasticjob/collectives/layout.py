"""The encoding of a tensor of any shape and dtype: a header of fixed length that describes it, and its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elasticjob.errors import ConfigurationError

MOST_DIMENSIONS = 32
# The order is part of the wire format between the ranks of one world, which run the same torch.
_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def byte_count(shape: Sequence[int], dtype: torch.dtype) -> int:
    """The size in bytes of a tensor of this shape and dtype."""
    count = 1
    for length in shape:
        count *= length
    return count * dtype.itemsize


def encode_layout(tensor: torch.Tensor) -> list[int]:
    """Dtype, number of dimensions and shape, padded to MOST_DIMENSIONS + 2 integers.

    Raises ConfigurationError for a tensor that cannot be sent.
    """
    if tensor.dim() > MOST_DIMENSIONS:
        raise ConfigurationError(f"the tensor has {tensor.dim()} dimensions; at most {MOST_DIMENSIONS} work.")
    if tensor.dtype not in _DTYPES:
        raise ConfigurationError(f"{tensor.dtype} cannot be sent: convert the tensor first.")
    padding = [0] * (MOST_DIMENSIONS - tensor.dim())
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding]


def decode_layout(numbers: Sequence[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype from the result of `encode_layout`."""
    return tuple(numbers[2 : 2 + numbers[1]]), _DTYPES[numbers[0]]


def to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in order, as a flat uint8 tensor: a view if the tensor is contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


def from_bytes(chunk: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor, as a view of the flat uint8 tensor."""
    if chunk.numel() == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=chunk.device)
    return chunk.view(dtype).reshape(tuple(shape))
