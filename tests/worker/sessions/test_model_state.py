"""`session.model` is like the script's module, in a world of any size."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
import torch._dynamo.config
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from elasticjob.errors import ConfigurationError
from elasticjob.sessions.model_state import ReplicatedModelState, check_layers
from elasticjob.torchcompat import ddp
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


def test_the_model_of_a_world_that_broke_in_a_backward_pass_takes_no_part_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script may keep it: with an exception and its frames, or in a hook that notes the modules that ran."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)  # or there would be no DDP
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        state = ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None))
        state.bind(1)
        state.settle(0)
        kept = state._ddp
        assert kept is not None

        def lose(_: torch.Tensor) -> None:
            raise RuntimeError("a member was lost")

        hook = next(module.parameters()).register_post_accumulate_grad_hook(lose)  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="a member was lost"):
            torch.autograd.backward(state.model(torch.ones(1, 2)).sum())
        hook.remove()
        state.unbind()
        state.bind(2)
        state.settle(0)
        assert state._ddp is not kept
        torch.autograd.backward(state.model(torch.ones(1, 2)).sum())
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()


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


@pytest.mark.parametrize("mode", ["ddp_optimizer", "python_reducer"])
def test_a_ddp_that_is_let_go_of_hears_of_no_later_pass(mode: str) -> None:
    """With torch's reducer in Python, DDP has hooks of its own, which reduce in a group that has ended."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        module = torch.nn.Linear(2, 1)
        with torch._dynamo.config.patch(optimize_ddp=mode):
            kept = ddp.make_ddp(module, None, sync=False)
        kept(torch.ones(1, 2)).sum().backward()
        ddp.release(kept)
    finally:
        dist.destroy_process_group()
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad is not None and module.weight.grad.tolist() == [[2, 2]]


def test_a_ddp_that_is_kept_keeps_nothing_of_its_world() -> None:
    """Whoever keeps it, such as an exception with its frames, would keep a buffer of all gradients and a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        kept = ddp.make_ddp(torch.nn.Linear(2, 1), None, sync=False)
        kept(torch.ones(1, 2)).sum().backward()
        held = [weakref.ref(one) for one in (kept.reducer, kept.process_group)]
        ddp.release(kept)
    finally:
        dist.destroy_process_group()
    assert [one() for one in held] == [None, None]


@pytest.mark.parametrize(("reduces", "words"), [(True, "outside of on_world"), (False, "virtual ranks")])
def test_a_communication_hook_that_a_change_would_lose_is_refused(reduces: bool, words: str) -> None:
    """Each world has another DDP; with virtual ranks there is none."""
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None), reduces=reduces)
    with pytest.raises(ConfigurationError, match=words):
        state.model.register_comm_hook(None, lambda *_: None)
    state.is_entering = reduces
    if reduces:
        state.model.register_comm_hook(None, lambda *_: None)


def test_a_state_of_a_communication_hook_that_is_registered_again_needs_no_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One rank outside of an ElasticJob has none."""
    assert not dist.is_initialized()
    module, hook_state = Model(), object()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = ReplicatedModelState(module, optimizer, (lambda *_: None, lambda *_: None))
    state.is_entering = True
    for _ in range(2):
        state.model.register_comm_hook(hook_state, lambda *_: None)
    assert caplog.text.count("that was registered in an earlier world") == 1
