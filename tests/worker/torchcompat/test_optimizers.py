"""States of optimizers that are loaded as they were saved."""

from __future__ import annotations

import copy

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
