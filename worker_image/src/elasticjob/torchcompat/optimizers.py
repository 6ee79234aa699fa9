"""Steps of an optimizer that train nothing.

torch fills the state of an optimizer that has none by a step without gradients and with a learning rate of zero, for
example in `get_optimizer_state_dict`: for plain SGD, which never has a state, each time.
"""

from __future__ import annotations

import torch


def fills_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step that begins is torch's own, and not one of the script."""
    if optimizer.state or any(float(group.get("lr", 0.0)) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [
        parameter.grad for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    ]
    return all(gradient is not None and not gradient.any() for gradient in gradients)
