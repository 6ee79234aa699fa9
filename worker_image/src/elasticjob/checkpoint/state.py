"""The contents of a checkpoint: the tensors of model and optimizer, and the small state of other objects.

An optimizer makes the state of a parameter when that first has a gradient. So what a file contains does not depend on
the optimizer that it is restored into: the file itself says what is loaded, and the present model and optimizer say how
it is cut. torch's own functions for the optimizer's state make a step to fill it, which is neither what was trained nor
what was saved; they serve flat parameters only (FSDP1).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import sharding
from elasticjob.torchcompat.optimizers import load_state
from elasticjob.torchcompat.wrappers import strip, unwrap

# There `async_save` copies device tensors only, and writes host tensors while training changes them.
_SAVES_WHAT_CHANGES = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8)
_MOST_NAMED = 5

# Saving.


def collect(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The state whose tensors torch shards by rank. All ranks call it. Raises ConfigurationError like `list_names`."""
    model = unwrap(model)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = _collect_optimizer(model, optimizer)
    return _copy(state) if _SAVES_WHAT_CHANGES else state


def _collect_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    if sharding.is_flat(model):
        return dict(get_optimizer_state_dict(model, optimizer))
    return _name_optimizer(optimizer.state_dict(), list_names(model, optimizer))


def name_whole(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The same of a state that was put together, as `state_dict` gives it. `names`: of the optimizer's parameters."""
    model = {strip(name): value for name, value in state["model"].items()}
    return {"model": model} | ({"optimizer": _name_optimizer(state["optimizer"], names)} if names else {})


def _name_optimizer(plain: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    groups = [{**group, "params": [names[index] for index in group["params"]]} for group in plain["param_groups"]]
    # A key that is no index belongs to the optimizer as a whole.
    state = {names[key] if isinstance(key, int) else key: one for key, one in plain["state"].items()}
    return {"state": state, "param_groups": groups}


def list_names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The name of each of the optimizer's parameters, in its order, as `get_model_state_dict` calls it.

    Raises ConfigurationError if one is not in the model: it would be missing in every checkpoint.
    """
    model = unwrap(model)
    known = {parameter: strip(name) for name, parameter in model.named_parameters()}
    found = [known.get(one, "") for group in optimizer.param_groups for one in group["params"]]
    if not all(found):
        raise ConfigurationError(
            f"the optimizer has {found.count('')} parameters that the model does not have, so no checkpoint would"
            " contain them: give Checkpointer a module with all parameters that are trained."
        )
    return found


def collect_others(
    optimizer: torch.optim.Optimizer | None,
    others: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]] | None = None,
) -> bytes:
    """The state that is equal on all ranks, serialised by torch. `groups`: other ones than the optimizer's.

    Raises ConfigurationError for what would be written and never read: only plain data and tensors are unpickled.
    """
    if optimizer is None:
        groups = []
    elif groups is None:
        groups = optimizer.param_groups
    state: dict[str, Any] = {
        "others": {name: _make_plain(one.state_dict()) for name, one in others.items()},
        # The settings of the parameter groups, including keys unknown to torch, such as a learning-rate factor.
        "groups": [{key: _make_plain(value) for key, value in group.items() if key != "params"} for group in groups],
        "optimizer": name_kind(optimizer),
    }
    data = _serialise(state)
    if _find_unreadable(data):
        parts = state["others"] | {"the optimizer's parameter groups": state["groups"]}
        reasons = {name: _find_unreadable(_serialise(part)) for name, part in parts.items()}
        raise ConfigurationError(
            "; ".join(
                f"the state of {name} could not be restored: {reason}" for name, reason in reasons.items() if reason
            )
            + ". A state_dict() to save consists of tensors, numbers, texts, lists and dicts."
        )
    return data


def name_kind(optimizer: torch.optim.Optimizer | None) -> str:
    """What tells an optimizer from others: they mean other things by the same state and settings."""
    return "" if optimizer is None else type(optimizer).__name__


def _serialise(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _find_unreadable(data: bytes) -> str:
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return next((line for line in lines if "global" in line.lower()), lines[0] if lines else type(error).__name__)
    return ""


def _make_plain(value: Any) -> Any:
    """Numbers of NumPy, which are not unpickled, as numbers of Python."""
    if type(value) is dict:
        return {_make_plain(key): _make_plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_make_plain(one) for one in value)
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


# Restoring.


def prepare(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, saved: Metadata
) -> tuple[dict[str, Any], list[str]]:
    """Room for what a checkpoint contains, cut like the present model; and how the two differ, one line each."""
    model = unwrap(model)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    paths = {name: path for name, path in (saved.planner_data or {}).items() if name in saved.state_dict_metadata}
    differences = list(_compare_models(state["model"], saved, paths))
    if optimizer is None:
        return state, differences
    if sharding.is_flat(model):
        return state | {"optimizer": get_optimizer_state_dict(model, optimizer)}, differences
    parameters = dict(zip(list_names(model, optimizer), _list_parameters(optimizer), strict=True))
    there: dict[str, Any] = {}
    for name, path in paths.items():
        if path[0] == "optimizer":
            _put(
                there, path, _make_room(parameters.get(str(next(iter(path[2:]), ""))), saved.state_dict_metadata[name])
            )
    if not there:
        return state, [*differences, "it has no optimizer"]
    return state | there, differences


def _compare_models(own: Mapping[str, Any], saved: Metadata, paths: Mapping[str, Any]) -> Iterator[str]:
    there = {path[1]: saved.state_dict_metadata[name] for name, path in paths.items() if path[0] == "model"}
    lacking = [name for name, value in own.items() if name not in there and isinstance(value, torch.Tensor)]
    if lacking:
        yield f"it has no {_list(lacking)}"
    extra = [name for name in there if name not in own]
    if extra:
        yield f"it also has {_list(extra)}"
    for name, one in there.items():
        value = own.get(name)
        if isinstance(value, torch.Tensor) and isinstance(one, TensorStorageMetadata) and value.shape != one.size:
            yield f"{name} has the shape {list(one.size)}, not {list(value.shape)}"


def find_casts(own: Mapping[str, Any], saved: Metadata) -> str:
    """Which values of the model `load` converts, as torch's own loading does; empty if none."""
    pairs: set[tuple[str, str]] = set()
    for name, path in (saved.planner_data or {}).items():
        there = saved.state_dict_metadata.get(name)
        value = own.get(path[1]) if path[0] == "model" else None
        if isinstance(value, torch.Tensor) and isinstance(there, TensorStorageMetadata):
            pairs.add((str(there.properties.dtype), str(value.dtype)))
    found = [f"from {one} to {other}" for one, other in sorted(pairs) if one != other]
    return ", ".join(found).replace("torch.", "")


def compare_kinds(optimizer: torch.optim.Optimizer | None, saved: str) -> list[str]:
    """How the kind of an optimizer differs, if it was noted."""
    own = name_kind(optimizer)
    return [f"its optimizer is {saved}, not {own}"] if own and saved and own != saved else []


def _list(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _make_room(parameter: torch.Tensor | None, said: Any) -> torch.Tensor | None:
    """A tensor for a part of an optimizer's state: like the parameter that it belongs to, if it has its shape."""
    if not isinstance(said, TensorStorageMetadata):
        return None
    if parameter is not None and parameter.shape == said.size:
        return torch.empty_like(parameter.detach(), dtype=said.properties.dtype)
    return torch.empty(said.size, dtype=said.properties.dtype)


def _put(root: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Set a value at a path of keys and positions, and make the dicts and lists on the way."""
    container: Any = root
    key: Any
    for key, after in zip(path, (*path[1:], None), strict=True):
        if isinstance(container, list):
            container.extend([None] * (key + 1 - len(container)))
        if after is None:
            container[key] = value
            return
        present = container[key] if isinstance(container, list) else container.get(key)
        if present is None:
            present = container[key] = [] if isinstance(after, int) else {}
        container = present


def compare_groups(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, state: Mapping[str, Any]
) -> list[str]:
    """How the parameter groups of a loaded state differ from those of the optimizer, one line each."""
    if optimizer is None or sharding.is_flat(model):
        return []
    names = iter(list_names(model, optimizer))
    own = [[next(names) for _ in group["params"]] for group in optimizer.param_groups]
    saved = [[str(name) for name in group["params"]] for group in state["optimizer"]["param_groups"]]
    if len(own) != len(saved):
        return [f"its optimizer has {len(saved)} parameter groups, not {len(own)}"]
    return [
        f"parameter group {number} of the optimizer has {_list(theirs)}, not {_list(mine)}"
        for number, (theirs, mine) in enumerate(zip(saved, own, strict=True))
        if set(theirs) != set(mine)
    ]


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
    model = unwrap(model)
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        _apply_optimizer(model, optimizer, state["optimizer"], saved["groups"])
    there = saved["others"]
    for name in [name for name in others if name in there]:  # in the same order on all ranks
        load_state(others[name], there[name])
    return [name for name in others if name not in there]


def _apply_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], settings: list[dict[str, Any]]
) -> None:
    if sharding.is_flat(model):
        set_optimizer_state_dict(model, optimizer, state)
        for group, saved in zip(optimizer.param_groups, settings, strict=True):
            group.update(saved)
        return
    indices = {name: index for index, name in enumerate(list_names(model, optimizer))}
    groups = optimizer.state_dict()["param_groups"]
    # A setting that came with a newer torch keeps its value.
    together = [{**own, **saved} for own, saved in zip(groups, settings, strict=True)]
    there = {indices.get(name, name): one for name, one in state.get("state", {}).items()}
    load_state(optimizer, {"state": there, "param_groups": together})


def _copy(value: Any) -> Any:
    """Copy nested dicts and lists, including their tensors."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy(one) for one in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
