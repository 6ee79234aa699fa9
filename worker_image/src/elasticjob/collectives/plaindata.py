"""Converts plain data to JSON and back: the state besides tensors, so that no data from the network is unpickled.

Numbers, strings and None are encoded as themselves; everything else as `[kind, ...]`, which preserves tuples and
non-string keys. Input in any other form raises ValueError and runs no code.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import sys
from typing import Any

import torch

from elasticjob.collectives.skeletons import Slot
from elasticjob.errors import ConfigurationError


def encode(value: Any, name: str = "state") -> str:
    """Encode a value as JSON; equal values give equal strings. `name` is the path that an error message shows."""
    return json.dumps(_fold(value, name), separators=(",", ":"))


def decode(text: str | bytes) -> Any:
    """Decode a value. Raises ValueError for anything that `encode` cannot produce."""
    try:
        return _unfold(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, binascii.Error) as error:
        raise ValueError(f"this is not plain data ({type(error).__name__}: {error})") from None


def _fold(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return ["dict", [[_fold(key, name), _fold(item, f"{name}[{key!r}]")] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        kind = "size" if isinstance(value, torch.Size) else "list" if isinstance(value, list) else "tuple"
        return [kind, [_fold(item, f"{name}[{i}]") for i, item in enumerate(value)]]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _fold_rare(value, name)


def _fold_rare(value: Any, name: str) -> Any:
    if isinstance(value, Slot):
        return ["slot", value.index, list(value.shape), _name_of(value.dtype), value.device]
    if isinstance(value, torch.dtype):
        return ["dtype", _name_of(value)]
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        array = numpy.asarray(value)
        kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
        return [kind, array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]
    raise ConfigurationError(
        f"{name} is a {type(value).__qualname__}, which cannot be sent to another rank: let its state_dict()"
        " return tensors, numbers, texts, lists and dicts."
    )


def _unfold(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind, *rest = value
    return _KINDS[kind](*rest)


def _unfold_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch.{name} is not a dtype")  # noqa: TRY004 - caught by the one `except` above
    return dtype


def _unfold_slot(index: int, shape: list[int], dtype: str, device: str) -> Slot:
    return Slot(int(index), tuple(int(length) for length in shape), _unfold_dtype(dtype), str(device))


def _unfold_array(dtype: str, shape: list[int], data: str) -> Any:
    numpy: Any = importlib.import_module("numpy")  # not a dependency: a script with such a state has numpy

    wanted = numpy.dtype(dtype)
    if wanted.hasobject:
        raise ValueError(f"{dtype} contains objects")
    return numpy.frombuffer(base64.b64decode(data), dtype=wanted).reshape(shape).copy()


_KINDS: dict[str, Any] = {
    "dict": lambda items: {_unfold(key): _unfold(item) for key, item in items},
    "list": lambda items: [_unfold(item) for item in items],
    "tuple": lambda items: tuple(_unfold(item) for item in items),
    "size": lambda items: torch.Size([_unfold(item) for item in items]),
    "slot": _unfold_slot,
    "dtype": _unfold_dtype,
    "bytes": base64.b64decode,
    "complex": complex,
    "array": _unfold_array,
    "scalar": lambda dtype, shape, data: _unfold_array(dtype, shape, data)[()],
}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
