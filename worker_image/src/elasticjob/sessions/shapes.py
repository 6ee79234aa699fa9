"""Modules whose tensors get their shape in the first pass: observers of quantization, statistics, lazy layers.

The script of a joiner has made no pass when it gets the state of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from elasticjob.errors import ConfigurationError

_REMEDY = (
    "The script of a joiner makes its session before its first pass through the model: let every script make the whole"
    " model before that, and pass one batch through it, under torch.no_grad(), if a pass gives it its tensors. Their"
    " shapes must not depend on the rank or on the size of the world."
)


def check_made(model: torch.nn.Module) -> None:
    """Raises ConfigurationError for a lazy module that has not got its shape."""
    for kind, found in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, one in found:
            if is_lazy(one):
                raise ConfigurationError(
                    f"the {kind} {name!r} of a lazy module has no shape yet, and the ranks of a world compare and send"
                    " it. Pass one batch through the model, under torch.no_grad(), before the optimizer and the session"
                    " are made."
                )


def load(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """`module.load_state_dict(state)`, in which buffers may have other shapes. Raises ConfigurationError if parameters
    have, which an optimizer knows.
    """
    _fit_buffers(module, state)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        problem = _find_problem(module.state_dict(), state)
        if problem is None:
            raise
        raise ConfigurationError(f"{problem}. {_REMEDY}") from error


def _fit_buffers(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    mine = module.state_dict()
    for key in _find_other_shapes(mine, state):
        owner, _, name = key.rpartition(".")
        try:
            here = module.get_buffer(key)
        except AttributeError:  # a parameter, or nothing
            continue
        theirs = state.get(key)
        device = here.device if isinstance(here, torch.Tensor) else None
        made = None if theirs is None else torch.empty_like(theirs, device=device)
        setattr(module.get_submodule(owner), name, made)


def read_unsaved(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that are in no `state_dict`. DDP sends them in its passes, and wants them of equal shapes."""
    saved = module.state_dict().keys()
    return {name: one.contiguous() for name, one in module.named_buffers() if name not in saved}


@torch.no_grad()
def load_unsaved(module: torch.nn.Module, theirs: Mapping[str, torch.Tensor]) -> None:
    """Make them those of another rank. One that this rank does not have comes with a pass."""
    for key, value in theirs.items():
        owner, _, name = key.rpartition(".")
        try:
            mine = module.get_buffer(key)
        except AttributeError:
            continue
        is_alike = mine is not None and mine.shape == value.shape and mine.dtype == value.dtype
        if is_alike and mine.is_contiguous():  # one that was expanded cannot be written
            mine.copy_(value)
        elif not is_alike or not torch.equal(mine, value):
            setattr(module.get_submodule(owner), name, value.clone())


def _find_other_shapes(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterable[str]:
    keys = dict.fromkeys([*theirs, *mine])
    return [key for key in keys if _shape_of(mine, key) != _shape_of(theirs, key)]


def _shape_of(state: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    found = state.get(key)
    return tuple(found.shape) if isinstance(found, torch.Tensor) else None


def _find_problem(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    for key in _find_other_shapes(mine, theirs):
        here, there = _shape_of(mine, key), _shape_of(theirs, key)
        if here is None:
            return f"the ranks that train already have {key!r} of the shape {there}, and this one has not"
        if there is None:
            return f"this rank has {key!r} of the shape {here}, and the ranks that train already have not"
        return f"{key!r} has the shape {here} here, and {there} on the ranks that train already"
    return None
