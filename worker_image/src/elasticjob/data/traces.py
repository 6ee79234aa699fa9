"""Digests of everything that a step consists of, for `elasticjob verify`: which of two runs' phases first differs.

If ELASTICJOB_TRACE names a folder, each process appends to a file of its own in it: one JSON line for each turn of a
virtual rank, and one for each step. Nothing is written otherwise.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from elasticjob import env
from elasticjob.data.virtual_plan import Micro


class Trace:
    """Traces nothing."""

    active = False

    def begin(self, micro: Micro) -> None:
        """A turn begins."""

    def compute(self, micro: Micro, parameters: list[torch.nn.Parameter]) -> None:
        """The backward pass of a turn is over."""

    def reduce(self, micro: Micro, parameters: list[torch.nn.Parameter], loss: float | None) -> None:
        """The gradients of a step are added up."""


class FileTrace(Trace):
    """Appends to a file."""

    active = True

    def __init__(self, folder: Path, model: torch.nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.jsonl"
        self._model = model
        self._random = ""
        self._inputs: list[str] = []
        model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)

    def _note_inputs(self, _: Any, arguments: Any, keywords: Any) -> None:
        self._inputs.append(digest([arguments, keywords]))

    def begin(self, micro: Micro) -> None:
        self._random = digest([torch.get_rng_state(), repr(random.getstate()), _numpy_state()])
        self._inputs = []

    def compute(self, micro: Micro, parameters: list[torch.nn.Parameter]) -> None:
        if not micro.samples:
            return
        line = {"step": list(micro.stream[1:3]), "leaf": micro.virtual * micro.parts + micro.part, "rng": self._random}
        self._write(line | {"data": digest(self._inputs), "compute": digest([one.grad for one in parameters])})

    def reduce(self, micro: Micro, parameters: list[torch.nn.Parameter], loss: float | None) -> None:
        line: dict[str, Any] = {"step": list(micro.stream[1:3]), "loss": loss}
        line |= {"parameters": _digest_whole(parameters), "reduction": _digest_whole([one.grad for one in parameters])}
        self._write(line | {"buffers": digest(list(self._model.buffers()))})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def find_trace(model: torch.nn.Module) -> Trace:
    """The trace that the environment asks for."""
    folder = os.environ.get(env.TRACE)
    return FileTrace(Path(folder), model) if folder else Trace()


def _digest_whole(tensors: Sequence[Any]) -> str | None:
    """None if they are sharded: what a rank has of them depends on the world."""
    return None if any(hasattr(one, "to_local") for one in tensors) else digest(list(tensors))


def digest(value: Any) -> str:
    """A digest of nested tensors and plain values."""
    state = hashlib.blake2b(digest_size=8)
    _feed(state, value)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        state.update(f"{value.dtype}{tuple(value.shape)}".encode())
        here = value.contiguous().cpu()
        # Not tensor.numpy(): NumPy may not be installed.
        state.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()) if here.numel() else b"")
    elif isinstance(value, dict):
        for key, item in value.items():
            _feed(state, key)
            _feed(state, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())


def _numpy_state() -> str:
    numpy: Any = sys.modules.get("numpy")
    return "" if numpy is None else repr(numpy.random.get_state())
