"""The contents of a checkpoint: the tensors of model and optimizer, and the small state of other objects."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

# There `async_save` copies device tensors only, and writes host tensors while training changes them.
_SAVES_WHAT_CHANGES = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8)


def collect(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The state whose tensors torch shards by rank. All ranks call it."""
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return _copy(state) if _SAVES_WHAT_CHANGES else state


def collect_others(optimizer: torch.optim.Optimizer | None, others: Mapping[str, Any]) -> bytes:
    """The state that is equal on all ranks, serialised by torch."""
    groups = optimizer.param_groups if optimizer is not None else []
    state = {
        "others": {name: one.state_dict() for name, one in others.items()},
        # The settings of the parameter groups, including keys unknown to torch, such as a learning-rate factor.
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in groups],
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def apply(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    others: Mapping[str, Any],
    state: dict[str, Any],
    saved: dict[str, Any],
) -> list[str]:
    """Load the collected state: `state`, and `saved` for other objects. Returns the names of `others` that `saved`
    lacks.
    """
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
        for group, settings in zip(optimizer.param_groups, saved["groups"], strict=True):
            group.update(settings)
    there = saved["others"]
    for name in [name for name in others if name in there]:  # in the same order on all ranks
        others[name].load_state_dict(there[name])
    return [name for name in others if name not in there]


def _copy(value: Any) -> Any:
    """Copy nested dicts and lists, including their tensors."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy(one) for one in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
