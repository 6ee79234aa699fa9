"""`session.model` is like the script's module, in a world of any size."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.algorithms.join import Join

from elasticjob.errors import ConfigurationError
from elasticjob.sessions.model_state import ReplicatedModelState, check_layers
from elasticjob.torchcompat.wrappers import unwrap


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.norm = torch.nn.BatchNorm1d(1)
        self.temperature = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.linear(x))
        return found

    def describe(self) -> str:
        return "a model"


def test_it_has_the_attributes_and_the_names_of_the_module() -> None:
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None)).model
    assert model.temperature == 0.5 and model.describe() == "a model" and model.linear is module.linear
    with pytest.raises(AttributeError, match="nothing"):
        _ = model.nothing
    for name in ("state_dict", "named_parameters", "named_buffers", "named_modules"):
        assert list(dict(getattr(model, name)())) == list(dict(getattr(module, name)())), name
    assert all(one is other for one, other in zip(model.parameters(), module.parameters(), strict=True))
    assert not model.load_state_dict(module.state_dict()).missing_keys
    assert unwrap(model) is module, "what a Checkpointer saves"
    model.eval()
    assert not module.norm.training
    assert isinstance(copy.deepcopy(model), Model), "a copy belongs to no session"


def test_torchs_join_is_refused_in_words() -> None:
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None)).model
    with pytest.raises(ConfigurationError, match="ElasticDistributedSampler"):
        Join([model])  # type: ignore[list-item]  # torch asks no more of it than this method


@pytest.mark.parametrize("layer", [torch.nn.LazyLinear(1), torch.nn.LazyBatchNorm1d(affine=False)])
def test_a_lazy_layer_without_a_shape_is_refused_in_words(layer: torch.nn.Module) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), layer)
    optimizer = torch.optim.SGD(module[0].parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"'1\.\w+' of a lazy module has no shape yet.*Pass one batch through"):
        ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None))


def test_synchronized_batch_norm_on_the_cpu_is_refused_in_words() -> None:
    """torch runs it in a world of one rank, and raises in each larger one."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2))
    with pytest.raises(ConfigurationError, match=r"'1' is a SyncBatchNorm.*virtual_ranks"):
        check_layers(module)
    check_layers(torch.nn.Sequential(torch.nn.BatchNorm1d(2)))
