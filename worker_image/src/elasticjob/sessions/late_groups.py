"""Groups of parameters that a script adds to an optimizer while it trains: a joiner gets them with the state.

The script of a joiner has not come to the point at which those of the others have added them, and may never come there:
`if epoch == 2`. So the others name their parameters, and the joiner adds them before it takes the state. A script that
comes there later, or again in a step that is repeated, adds a group that is there already: that changes nothing.

And parameters of no module, which only an optimizer has, such as weights of losses: a joiner gets their values too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from elasticjob.errors import ConfigurationError

Groups = list[list[str]]  # the names of the parameters of each group; "" for one of no module that the session knows


def name_parameters(modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Parameter]:
    """The parameters of these modules by name."""
    return {f"{name}:{key}": one for name, module in modules.items() for key, one in module.named_parameters()}


def read(optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]) -> Groups:
    """The groups of an optimizer, as they are told to others."""
    names = {id(one): name for name, one in named.items()}
    return [[names.get(id(one), "") for one in group["params"]] for group in optimizer.param_groups]


def find_loose(
    optimizers: Mapping[str, torch.optim.Optimizer], named: Mapping[str, torch.nn.Parameter]
) -> dict[str, list[torch.Tensor]]:
    """By the name of the optimizer, in its order, the parameters that are not among these. Others are left out."""
    known = {id(one) for one in named.values()}
    found = {
        name: [one for group in optimizer.param_groups for one in group["params"] if id(one) not in known]
        for name, optimizer in optimizers.items()
    }
    return {name: those for name, those in found.items() if those}


@torch.no_grad()
def load_loose(mine: Mapping[str, Sequence[torch.Tensor]], theirs: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Make the parameters of `find_loose` those of another rank, or of an earlier step.

    Raises ConfigurationError if they have other shapes.
    """
    for name, those in mine.items():
        for one, value in zip(those, theirs.get(name, ()), strict=False):  # an earlier step may have had fewer
            if one.shape != value.shape:
                raise ConfigurationError(
                    f"an optimizer trains a parameter of no module, of the shape {tuple(one.shape)} here and"
                    f" {tuple(value.shape)} on the ranks that train already: let every script make the same ones."
                )
            one.copy_(value)


def take(
    optimizer: torch.optim.Optimizer,
    theirs: Groups,
    state: Mapping[str, Any],
    named: Mapping[str, torch.nn.Parameter],
) -> None:
    """Add the groups that the ranks which train already have, and this one has not. `state`: of their optimizer.

    If this one has added groups in a step that is repeated, and they have not, `state` gets these.

    Raises ConfigurationError if that is not possible, so that this optimizer cannot get their state.
    """
    mine = read(optimizer, named)
    if mine[: len(theirs)] == theirs:
        complete(optimizer, state)
        return
    late = theirs[len(mine) :]
    if theirs[: len(mine)] == mine and all(name in named for group in late for name in group):
        for names, saved in zip(late, state["param_groups"][len(mine) :], strict=True):
            parameters = [named[name] for name in names]
            their_names = saved.get("param_names")  # of an optimizer that was made with names
            given = parameters if their_names is None else list(zip(their_names, parameters, strict=True))
            optimizer.add_param_group({"params": given})
    _check(optimizer, [len(group["params"]) for group in state["param_groups"]])


def complete(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Extend an older state of this optimizer by the groups that were added since, as they are here.

    The step that has added them is repeated then, or is still to come: a script that adds them again changes nothing.
    """
    state["param_groups"].extend(optimizer.state_dict()["param_groups"][len(state["param_groups"]) :])


def _check(optimizer: torch.optim.Optimizer, theirs: Sequence[int]) -> None:
    mine = [len(group["params"]) for group in optimizer.param_groups]
    if mine != list(theirs):
        here, there = (f"{len(count)} with {sum(count)} parameters" for count in (mine, theirs))
        raise ConfigurationError(
            f"{type(optimizer).__name__} has other parameter groups here ({here}) than on the ranks that train already"
            f" ({there}). A joiner gets groups that were added later only if their parameters are of the session's"
            " model, or of a module that is passed to it by name: make these before the session, with"
            " requires_grad=False until they are trained."
        )


def allow_repeats(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Let a script add a group that is there already, for which torch raises an error."""
    for one in optimizers:
        one.add_param_group = _make_adding(one)  # type: ignore[method-assign]


def _make_adding(optimizer: torch.optim.Optimizer) -> Any:
    add = optimizer.add_param_group

    def add_unless_there(group: dict[str, Any]) -> None:
        given = group["params"]
        if not isinstance(given, set):  # which torch refuses, as its order differs from rank to rank
            group["params"] = [given] if isinstance(given, torch.Tensor) else list(given)  # it may be an iterator
            wanted = [id(one[1]) if isinstance(one, tuple) else id(one) for one in group["params"]]
            if wanted in [[id(one) for one in found["params"]] for found in optimizer.param_groups]:
                return
        add(group)

    return add_unless_there
