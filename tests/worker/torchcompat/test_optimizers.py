"""States of optimizers that are loaded as they were saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from elasticjob.torchcompat.optimizers import load_state

pytestmark = pytest.mark.timeout(60)


def test_a_rate_in_a_tensor_stays_the_tensor_that_the_script_sets() -> None:
    """After a step that is taken back, `rate.fill_(...)` would otherwise change nothing any more, without a word."""
    rate, weight = torch.tensor(0.5), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=rate, foreach=False)
    before = copy.deepcopy(optimizer.state_dict())
    rate.fill_(0.25)
    load_state(optimizer, before)
    assert rate.item() == 0.5
    assert optimizer.param_groups[0]["lr"] is rate


@pytest.mark.parametrize(
    ("own", "saved", "is_kept"),
    [
        (torch.tensor(0.25), torch.tensor(0.5), True),
        (torch.tensor(0.25, requires_grad=True), torch.tensor(0.5), True),  # of a script that learns its rate
        (torch.tensor(0.25), torch.tensor(0.5, requires_grad=True), True),
        (torch.tensor(0.25), torch.tensor([0.5]), False),  # of a script that has changed since the checkpoint
        (torch.tensor([0.25]), torch.tensor(0.5), False),
        (torch.tensor(0.25), 0.5, False),
        (0.25, torch.tensor(0.5), False),
    ],
)
def test_a_rate_that_was_saved_in_another_form(own: Any, saved: Any, is_kept: bool) -> None:
    """What differs from the tensor of the script is loaded as torch loads it."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=own, foreach=False)
    state = optimizer.state_dict()
    load_state(optimizer, {**state, "param_groups": [{**one, "lr": saved} for one in state["param_groups"]]})
    found = optimizer.param_groups[0]["lr"]
    assert float(torch.as_tensor(found).detach()) == 0.5
    assert (found is own) == is_kept
    assert getattr(found, "shape", None) == getattr(saved, "shape", None)
