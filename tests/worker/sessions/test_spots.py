"""Spot checks of tensors of all kinds: what is changed through `.data` is seen, and nothing else."""

from __future__ import annotations

import pytest
import torch

from elasticjob.sessions.spots import Spots


def make_wide() -> torch.Tensor:
    return torch.zeros(4, 6, 5)[:, ::2].transpose(0, 2)


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.zeros(3, 5), id="a matrix"),
        pytest.param(torch.tensor(0.0), id="a number"),
        pytest.param(torch.full((7,), float("nan")), id="what does not equal itself"),
        pytest.param(torch.zeros(1000, 77), id="more than the words of it"),
        pytest.param(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), id="channels last"),
        pytest.param(make_wide(), id="parts of another one"),
        pytest.param(torch.zeros(9)[3:], id="an offset"),
        pytest.param(torch.zeros(3, dtype=torch.complex128), id="complex"),
        pytest.param(torch.zeros(3, dtype=torch.bfloat16), id="half"),
        pytest.param(torch.zeros(3, dtype=torch.float8_e4m3fn), id="a quarter"),
        pytest.param(torch.zeros(3, dtype=torch.bool), id="truths"),
    ],
)
def test_a_change_of_one_is_seen(tensor: torch.Tensor) -> None:
    tensors = [torch.ones(2), tensor, torch.ones(2)]
    spots = Spots(tensors, [])
    before = spots.read()
    assert spots.find_changed(before) == []
    tensor.data.copy_(torch.ones(tensor.shape))
    found = spots.find_changed(before)
    assert [one is tensor for one in found] == [True]


def test_what_has_no_plain_memory_is_left_out() -> None:
    sparse = torch.eye(3).to_sparse()
    spots = Spots([sparse, torch.empty(0), torch.zeros(2)], [])
    assert spots.find_changed(spots.read()) == []
