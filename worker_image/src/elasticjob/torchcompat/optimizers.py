"""Steps of an optimizer that train nothing or come from a GradScaler, and states that are loaded as they were saved.

torch fills the state of an optimizer that has none by a step without gradients and with a learning rate of zero, for
example in `get_optimizer_state_dict`: for plain SGD, which never has a state, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from elasticjob.torchcompat.probe import Probe, find, has_all

_HANDLES_SCALE = "_step_supports_amp_scaling"
_TASK = "torch._C._current_graph_task_id"


class BeforeScaledStep(torch.optim.Optimizer):
    """Has `before_scaled_step` called when a GradScaler begins a step, before it changes the gradients for it.

    A scaler first asks whether the optimizer divides them itself, as some of torch's own do.
    """

    def before_scaled_step(self) -> None:
        raise NotImplementedError

    @property
    def _step_supports_amp_scaling(self) -> bool:
        self.before_scaled_step()
        return bool(self.__dict__.get(_HANDLES_SCALE, False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__[_HANDLES_SCALE] = value


def untraced(function: Callable[..., None]) -> Callable[..., None]:
    """This function, into which `torch.compile` of a step does not trace.

    What it looks up would be looked up before the graph begins that it waits for, and what it notes noted after it.
    """
    try:
        found: Callable[..., None] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    except ImportError:  # of the compiler
        return function
    return found


def hook_all(before: Callable[..., None], after: Callable[..., None]) -> Callable[[], None]:
    """Call these around each step of any optimizer of the process, until what is returned is called."""
    handles = [
        register_optimizer_step_pre_hook(untraced(before)),
        register_optimizer_step_post_hook(untraced(after)),
    ]

    def remove() -> None:
        for one in handles:
            one.remove()

    return remove


def is_in_backward() -> bool:
    """Whether a backward pass has called this function, as a hook of a gradient does."""
    look = find(_TASK)
    return look is not None and bool(look() != -1)


def fills_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step that begins is torch's own, and not one of the script."""
    if optimizer.state or any(float(group.get("lr", 0.0)) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [
        parameter.grad for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    ]
    return all(gradient is not None and not gradient.any() for gradient in gradients)


def load_state(one: Any, state: Mapping[str, Any]) -> None:
    """`one.load_state_dict(state)`, after which a number in the state of an optimizer has the precision that it had.

    torch casts them all to the type of the parameter, also what NAdam and ASGD count in a tensor without dimensions. A
    rate in a tensor stays in that one, which the script may set itself, unless it was saved with another shape.
    """
    is_optimizer = isinstance(one, torch.optim.Optimizer)
    known = [dict(group) for group in one.param_groups] if is_optimizer else []
    one.load_state_dict(state)
    if not is_optimizer:
        return
    for before, group in zip(known, one.param_groups, strict=False):
        for name, own in before.items():
            loaded = group.get(name)
            if isinstance(own, torch.Tensor) and isinstance(loaded, torch.Tensor) and own.shape == loaded.shape:
                with torch.no_grad():  # a script may learn its rate
                    group[name] = own.copy_(loaded)
    indices = (index for group in state["param_groups"] for index in group["params"])
    parameters = (parameter for group in one.param_groups for parameter in group["params"])
    for index, parameter in zip(indices, parameters, strict=False):
        own = one.state.get(parameter, {})
        for name, saved in state["state"].get(index, {}).items() if parameter.dim() else ():
            loaded = own.get(name)
            if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor) and saved.dim() == 0:
                own[name] = loaded if loaded.dtype == saved.dtype else saved.detach().clone().to(loaded.device)


PROBES = (
    Probe(
        "an optimizer that steps inside of the backward pass is refused in a session of several ranks",
        (_TASK,),
        "a loss in the pass leaves a part of the step applied, and with DDP, which reduces after such hooks, each rank"
        " trains a model of its own",
        has_all(_TASK),
    ),
    Probe(
        "Horovod's optimizers find a GradScaler that divides gradients too early",
        (f"torch.optim.Adam.{_HANDLES_SCALE}",),
        "such a mistake of a script is not reported",
        lambda: _HANDLES_SCALE in find("torch.amp.GradScaler.step").__code__.co_consts,
    ),
)
