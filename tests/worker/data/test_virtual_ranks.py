"""Virtual ranks as pure plans and in one process; `sessions/test_curve.py` runs worlds of several sizes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset

from elasticjob.data import determinism, streams
from elasticjob.data.buffers import SharedBuffers
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.data.virtual_plan import Place, plan_epoch
from elasticjob.data.virtual_ranks import VirtualRanks
from elasticjob.errors import ConfigurationError
from elasticjob.torchcompat import sharding


@given(
    virtual_ranks=st.integers(1, 9),
    world_size=st.integers(1, 11),
    length=st.integers(1, 120),
    global_batch=st.integers(1, 40),
    micro_batch=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_world_computes_the_same_turns(
    virtual_ranks: int, world_size: int, length: int, global_batch: int, micro_batch: int
) -> None:
    def plan(size: int, rank: int) -> list[Any]:
        return list(plan_epoch(Place(virtual_ranks, rank, size), (3, 1), length, 0, global_batch, micro_batch, False))

    plans = [plan(world_size, rank) for rank in range(world_size)]
    assert len({len(one) for one in plans}) == 1, "every rank makes as many passes"
    alone = {(m.stream, m.start, m.stop, m.scale, m.parts) for m in plan(1, 0)}
    assert {(m.stream, m.start, m.stop, m.scale, m.parts) for one in plans for m in one if m.virtual >= 0} == alone
    seen = Counter(sample for one in plans for m in one for sample in range(m.start, m.stop))
    assert seen == Counter(range(length)), "every sample once"
    weights = Counter[int]()
    for micro in (micro for one in plans for micro in one):
        weights[micro.stream[2]] += micro.samples / micro.batch
        assert micro.scale == micro.samples / micro.batch
    assert all(total == pytest.approx(1.0) for total in weights.values())


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random()), torch.rand(()).item()


def test_a_stream_is_what_its_key_says() -> None:
    streams.start((1, 2, 3))
    first = draw()
    assert draw() != first
    streams.start((1, 2, 4))
    assert draw() != first
    streams.start((1, 2, 3))
    assert draw() == first
    assert streams.find_seed((1, 23)) != streams.find_seed((12, 3))


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, item: int) -> torch.Tensor:
        return torch.tensor([item, random.random(), torch.rand(()).item()], dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_does_not_depend_on_the_world(workers: int) -> None:
    def load(size: int) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for rank in range(size):
            sampler = ElasticDistributedSampler(12, global_batch_size=6, virtual_ranks=3, rank=rank, world_size=size)
            loader = DataLoader(Noise(), batch_sampler=sampler, num_workers=workers)
            for micro, batch in sampler.steps(loader):
                found |= {int(row[0]): row[1:].tolist() for row in batch if micro.samples}
        return found

    assert load(1) == load(2) == load(3)
    assert len({tuple(row) for row in load(1).values()}) == 12


def make_ranks(model: torch.nn.Module, virtual_ranks: int = 4) -> tuple[VirtualRanks, ElasticDistributedSampler]:
    sampler = ElasticDistributedSampler(24, global_batch_size=8, virtual_ranks=virtual_ranks, shuffle=False)
    return VirtualRanks(model, sampler), sampler


def test_the_gradient_is_the_mean_over_the_global_batch() -> None:
    model = torch.nn.Linear(3, 1)
    ranks, sampler = make_ranks(model)
    x = torch.randn(24, 3)
    for micro, batch in sampler.steps(DataLoader(x, batch_sampler=sampler)):  # type: ignore[arg-type]
        with ranks.turn(micro):
            ranks.backward(model(batch).square().mean())
        if micro.ends_step:
            got = model.weight.grad
            expected = torch.autograd.grad(
                loss := model(x[sampler.used - 8 : sampler.used]).square().mean(), model.weight
            )
            assert got is not None
            torch.testing.assert_close(got, expected[0])
            assert ranks.loss == pytest.approx(loss.item())


def test_what_follows_a_gradient_draws_from_the_stream_of_its_step() -> None:
    """In a turn, too: in a session, that is where the optimizer steps."""
    model = torch.nn.Linear(2, 1)
    sampler = ElasticDistributedSampler(4, global_batch_size=4, virtual_ranks=2, seed=3)
    ranks, drawn = VirtualRanks(model, sampler), []
    for micro, items in sampler.steps(DataLoader(range(4), batch_sampler=sampler)):  # type: ignore[arg-type]
        with ranks.turn(micro):
            draw()
            ranks.backward(model(torch.stack([items, items], 1).float()).mean())
            drawn.append(draw())
    streams.start((3, 0, 4))  # the seed, the epoch, and the samples that are used
    assert drawn[-1] == draw()


def test_a_parameter_without_a_gradient_has_none() -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1), "unused": torch.nn.Linear(3, 1)})
    ranks, sampler = make_ranks(model)
    for micro, batch in sampler.steps(DataLoader(torch.ones(24, 3), batch_sampler=sampler)):  # type: ignore[arg-type]
        with ranks.turn(micro):
            torch.autograd.backward(model["used"](batch).mean() * micro.scale)
    assert model["used"].weight.grad is not None
    assert model["unused"].weight.grad is None
    assert ranks.loss is None, "backward() was not used"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A world of one rank with a process group."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not sharding.has_custom_reduce(), reason="this torch's FSDP2 has no set_custom_reduce_scatter")
@pytest.mark.usefixtures("alone")
def test_a_sharded_parameter_without_a_gradient_has_none() -> None:
    from torch.distributed.fsdp import fully_shard

    class FirstOfTwo(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self[0](x)
            return out

    mesh = init_device_mesh("cpu", (1,))
    layers = [torch.nn.Linear(3, 1) for _ in range(2)]
    model = FirstOfTwo(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ranks, sampler = make_ranks(model)
    for micro, batch in sampler.steps(DataLoader(torch.ones(24, 3), batch_sampler=sampler)):  # type: ignore[arg-type]
        with ranks.turn(micro):
            ranks.backward(model(batch).mean())
    assert model[0].weight.grad is not None
    assert model[1].weight.grad is None, "an optimizer would decay it in a world of one only"


class Counting(torch.nn.Module):
    """Its buffers note who was here: one in place, and one replaced by another tensor."""

    total: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("fixed", torch.ones(()))

    def see(self, value: float) -> None:
        self.total += value
        self.last = torch.tensor(value)


def test_buffers_are_those_of_virtual_rank_0() -> None:
    model = Counting()
    buffers = SharedBuffers(model)
    for step in (1.0, 2.0):
        before = model.total.item()
        for virtual in range(3):
            buffers.begin(first=virtual == 0)
            assert model.total.item() == before, "every virtual rank starts with the same buffers"
            model.see(10 * step + virtual)
            if virtual == 0:
                buffers.keep()
        buffers.apply()
        assert (model.total.item(), model.last.item()) == (before + 10 * step, 10 * step)
        buffers.commit()
    buffers.begin(first=True)
    model.see(5.0)
    buffers.keep()
    buffers.apply()
    buffers.take_back()
    assert (model.total.item(), model.last.item()) == (30.0, 20.0), "a step that was broken off leaves nothing"
    model.total.fill_(7.0)  # a checkpoint was loaded
    buffers.begin(first=True)
    model.see(1.0)
    buffers.take_back()
    assert model.total.item() == 7.0


def test_a_buffer_that_gets_its_shape_in_a_step_is_refused_in_words() -> None:
    model = torch.nn.Module()
    model.register_buffer("low", torch.empty(0))
    buffers = SharedBuffers(model)
    buffers.begin(first=True)
    model.register_buffer("low", torch.ones(3))
    with pytest.raises(ConfigurationError, match=r"'low' of Module.*\(0,\).*\(3,\).*one batch through the model"):
        buffers.keep()


def fact(**changes: Any) -> determinism.Facts:
    good = {"torch": "2.13", "device": "AVX2", "threads": 1, "deterministic": True, "benchmark": False, "cublas": True}
    return good | changes


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([fact(), fact()], []),
        ([fact(deterministic=False)], ["use_deterministic_algorithms"]),
        ([fact(benchmark=True), fact(cublas=False)], ["cudnn.benchmark", "CUBLAS_WORKSPACE_CONFIG"]),
        ([fact(), fact(device="H100"), fact()], ["rank 1: H100"]),
        ([fact(), fact(threads=2), fact(torch="2.12")], ["rank 2: 2.12", "rank 1: 2"]),
        ([fact(driver="580.1"), fact(driver="570.2")], ["different drivers (rank 0: 580.1; rank 1: 570.2)"]),
        ([fact(precision="high"), fact(precision="highest")], ["precisions of float32 (rank 0: high"]),
        ([fact(cudnn=91002), fact(cudnn=90800)], ["versions of cuDNN"]),
        ([fact(attention="flash math"), fact(attention="math")], ["implementations of attention"]),
        ([fact(optimizers="fused"), fact(optimizers="foreach")], ["implementations of the optimizer (rank 0: fused"]),
    ],
)
def test_doubts_are_named(facts: list[determinism.Facts], said: list[str]) -> None:
    doubts = determinism.find_doubts(facts)
    assert len(doubts) == len(said)
    assert all(one in doubt for one, doubt in zip(said, doubts, strict=True))


def test_the_implementation_of_an_optimizer_is_a_fact() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    optimizers = [torch.optim.SGD(weights, fused=True), torch.optim.AdamW(weights, foreach=False), One(weights, {})]
    facts = determinism.observe(torch.device("cpu"), optimizers)
    assert facts["optimizers"] == "fused plain own"
    assert facts["device"] == torch.backends.cpu.get_cpu_capability(), "that of the model, whatever else is there"


class One(torch.optim.Optimizer):
    """An optimizer of the script."""


def test_the_version_of_the_driver_is_read(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n")
    assert determinism._read_driver(file) == "580.159.04"
    assert determinism._read_driver(tmp_path / "missing") == ""


def test_mistakes_are_explained() -> None:
    with pytest.raises(ConfigurationError, match="global_batch_size=4"):
        ElasticDistributedSampler(8, global_batch_size=4, virtual_ranks=5)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigurationError, match="virtual_ranks="):
        VirtualRanks(model, ElasticDistributedSampler(8, global_batch_size=4))
    with pytest.raises(ConfigurationError, match="rank 1 of 2"):
        VirtualRanks(model, ElasticDistributedSampler(8, global_batch_size=4, virtual_ranks=2, rank=1, world_size=2))
    ranks, _ = make_ranks(model)
    with pytest.raises(ConfigurationError, match="turn"):
        ranks.backward(model(torch.ones(1, 1)).sum())


@pytest.mark.parametrize("make", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_are_refused_before_the_first_step(make: Any) -> None:
    model = torch.nn.Sequential(make(4, 2, sparse=True), torch.nn.Linear(2, 1))
    sampler = ElasticDistributedSampler(8, global_batch_size=4, virtual_ranks=2)
    with pytest.raises(ConfigurationError, match="sparse=False"):
        VirtualRanks(model, sampler)
