"""What a script may give to its session: mistakes are refused in words, before anything begins. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from elasticjob.errors import ConfigurationError


def check(model: Any, optimizer: Any, sampler: Any, extras: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for an argument of `Session` that it cannot keep. None is left to others."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"{_describe('model', model)}, and needs a torch.nn.Module: put models that are trained together into one,"
            " such as torch.nn.ModuleDict, whose forward() calls them."
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"{_describe('optimizer', optimizer)}, and needs a torch.optim.Optimizer: give it the optimizer that such"
            " an object has inside, further ones by name, and a schedule as an object with state_dict and"
            " load_state_dict: Session(..., optimizer=optimizer, second=another, scheduler=scheduler)."
        )
    if sampler is not None and not _has_state(sampler):
        raise ConfigurationError(
            f"{_describe('sampler', sampler)}, which has no state_dict and load_state_dict, so that nobody would know"
            " after a change where in the data training is. Use sampler = ElasticDistributedSampler(dataset,"
            " global_batch_size=...), loader = DataLoader(dataset, batch_sampler=sampler), Session(...,"
            " sampler=sampler) and session.batches(loader)."
        )
    for name, one in extras.items():
        if not _has_state(one):
            raise ConfigurationError(
                f"{_describe(name, one)}, which has no state_dict and load_state_dict: what is passed by name is sent"
                " to processes that join. Give it these two methods, or leave it out if every process makes the"
                " same one."
            )


def _has_state(one: Any) -> bool:
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def _describe(name: str, value: Any) -> str:
    kind = type(value).__name__
    return f"Session({name}=...) got {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
