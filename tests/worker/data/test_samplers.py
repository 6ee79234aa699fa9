"""The sampler across changing worlds, as properties and tables. No processes: positions are plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from elasticjob.data.samplers import (
    ElasticDistributedSampler,
    learning_rate_factor,
    plan_epoch,
    scale_learning_rate,
)
from elasticjob.data.virtual_plan import Micro, split_share
from elasticjob.errors import ConfigurationError

batches = st.integers(1, 40)


@given(
    length=st.integers(1, 200),
    global_batch=batches,
    micro_batch=batches,
    worlds=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=6),
    last_world=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_once_across_any_worlds(
    length: int, global_batch: int, micro_batch: int, worlds: list[tuple[int, int]], last_world: int
) -> None:
    state = None
    seen: Counter[int] = Counter()
    for world, steps in [*worlds, (last_world, length)]:
        ranks = [
            ElasticDistributedSampler(
                length,
                global_batch_size=global_batch,
                micro_batch_size=micro_batch,
                rank=rank,
                world_size=world,
                seed=3,
            )
            for rank in range(world)
        ]
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
            assert len(list(sampler)) == len(sampler) == len(ranks[0])
        if ranks[0].epoch == 1:
            break
        for sampler in ranks:
            done = 0
            for micro, indices in sampler.steps(list(sampler)) if steps else ():
                seen.update(indices if micro.samples else [])
                done += micro.ends_step
                if done == steps:
                    break
        states = [sampler.state_dict() for sampler in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert seen == Counter(range(length))


@given(length=st.integers(1, 100), global_batch=batches, micro_batch=batches, world=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_the_weights_of_a_step_make_the_mean(length: int, global_batch: int, micro_batch: int, world: int) -> None:
    plans = [list(plan_epoch(length, 0, global_batch, micro_batch, rank, world)) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    weight = 0.0
    for same_time in zip(*plans, strict=True):
        assert len({micro.ends_step for micro in same_time}) == 1
        assert all(micro.samples <= micro_batch for micro in same_time)
        weight += sum(micro.scale for micro in same_time)
        if same_time[0].ends_step:
            assert weight == pytest.approx(world)  # DDP divides by the world size: a mean over the batch
            weight = 0.0


def test_the_batches_do_not_depend_on_the_world() -> None:
    def steps(world: int) -> list[set[int]]:
        found: list[set[int]] = []
        for rank in range(world):
            sampler = ElasticDistributedSampler(50, global_batch_size=12, rank=rank, world_size=world)
            for step, indices in enumerate(sampler):
                if rank == 0:
                    found.append(set())
                found[step] |= set(indices)
        return found

    assert steps(1)[:4] == steps(2)[:4] == steps(3)[:4] == steps(4)[:4]


def test_drop_last_leaves_the_rest() -> None:
    sampler = ElasticDistributedSampler(10, global_batch_size=4, rank=0, world_size=1, drop_last=True)
    assert [len(batch) for batch in sampler] == [4, 4]
    assert len(sampler) == 2


def test_a_position_at_the_end_is_the_start_of_the_next_epoch() -> None:
    sampler = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
    sampler.advance()
    sampler.advance()
    again = ElasticDistributedSampler(8, global_batch_size=4, rank=1, world_size=2)
    again.load_state_dict(sampler.state_dict())
    assert (again.epoch, again.used) == (1, 0)
    assert again.order() != sampler.order()


@pytest.mark.parametrize(
    ("epoch", "used", "left"),
    [
        pytest.param(2, 4, 1, id="the present position"),
        pytest.param(3, 0, 2, id="the start of a later one"),
        pytest.param(1, 8, 0, id="the end of an earlier one"),
    ],
)
def test_going_on_in_an_epoch(epoch: int, used: int, left: int) -> None:
    sampler = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
    sampler.set_epoch(2)
    sampler.advance()
    sampler.go_on_in(epoch)
    assert (sampler.epoch, sampler.used, len(list(sampler))) == (epoch, used, left)


def test_it_feeds_a_data_loader() -> None:
    data = TensorDataset(torch.arange(10.0))
    sampler = ElasticDistributedSampler(
        data, global_batch_size=6, micro_batch_size=2, rank=1, world_size=2, shuffle=False
    )
    found = [
        (micro.ends_step, round(micro.scale * 6), x.tolist())
        for micro, (x,) in sampler.steps(DataLoader(data, batch_sampler=sampler))
    ]
    assert found == [(False, 4, [3, 4]), (True, 2, [5]), (True, 6, [8, 9])]
    assert sampler.used == 10


def test_set_epoch_keeps_the_position_in_the_same_epoch() -> None:
    sampler = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
    sampler.advance()
    sampler.set_epoch(0)
    assert sampler.used == 4
    sampler.set_epoch(1)
    assert sampler.used == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"global_batch_size": 4, "rank": 2, "world_size": 2}, "rank=2"),
        ({"global_batch_size": 40, "drop_last": True}, "drop_last=True"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ElasticDistributedSampler(10, **{"rank": 0, "world_size": 1, **arguments})  # type: ignore[arg-type]


def test_another_dataset_is_refused() -> None:
    sampler = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
    with pytest.raises(ConfigurationError, match="9 samples, this one has 8"):
        sampler.load_state_dict({"epoch": 0, "used": 0, "seed": 0, "length": 9})


@pytest.mark.parametrize(("count", "parts", "sizes"), [(10, 4, [3, 3, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0])])
def test_split_share(count: int, parts: int, sizes: list[int]) -> None:
    shares = [split_share(count, parts, index) for index in range(parts)]
    assert [stop - start for start, stop in shares] == sizes
    assert [start for start, _ in shares[1:]] == [stop for _, stop in shares[:-1]]


@pytest.mark.parametrize(
    ("batch", "reference", "rule", "factor"),
    [(64, 64, "linear", 1.0), (128, 64, "linear", 2.0), (256, 64, "sqrt", 2.0), (256, 64, "none", 1.0)],
)
def test_learning_rate_factor(batch: int, reference: int, rule: str, factor: float) -> None:
    assert learning_rate_factor(batch, reference, rule) == factor


def test_scaling_again_replaces_the_factor_also_after_a_checkpoint() -> None:
    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    optimizer = build()
    scale_learning_rate(optimizer, 2.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    resumed = build()
    resumed.load_state_dict(optimizer.state_dict())
    scale_learning_rate(resumed, 4.0)
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.4)
    assert resumed.param_groups[0]["initial_lr"] == pytest.approx(0.4)


def test_no_sync_is_for_all_but_the_last_pass() -> None:
    class Model:
        entered = 0

        def no_sync(self) -> Model:
            return self

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None: ...

    model = Model()
    for ends_step in (False, False, True):
        with Micro(0, 1, 1.0, ends_step).sync(model):
            pass
    assert model.entered == 2


def enter(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """What a session does in each world."""
    for name, value in {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("sizes", [(3, 1, 2), (1, 2), (2, 2), (5, 3, 4)])
def test_who_stays_makes_as_many_passes_as_who_joins(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    """A model with collectives in its passes hangs otherwise: the default is that of the present world."""
    enter(monkeypatch, 0, sizes[0])
    old = ElasticDistributedSampler(200, global_batch_size=48)
    enter(monkeypatch, 0, sizes[-1])
    new = ElasticDistributedSampler(200, global_batch_size=48)
    assert old.micro_batch_size == new.micro_batch_size
    assert list(old.plan()) == list(new.plan())
    assert len(old) == len(new) == len(list(new.plan()))


def test_each_sampler_of_a_script_follows_the_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one for the evaluation, which no session knows."""
    enter(monkeypatch, 0, 1)
    evaluation = ElasticDistributedSampler(8, global_batch_size=4, shuffle=False)
    assert list(evaluation) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    enter(monkeypatch, 1, 2)
    assert list(evaluation) == [[2, 3], [6, 7]]
    evaluation.rank, evaluation.world_size = 0, 4
    assert list(evaluation) == [[0], [4]], "what the script says itself counts"


def test_a_size_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, 0, 2)
    sampler = ElasticDistributedSampler(100, global_batch_size=16, micro_batch_size=3)
    enter(monkeypatch, 0, 1)
    assert sampler.micro_batch_size == 3
    sampler.micro_batch_size = 5
    assert sampler.micro_batch_size == 5
    grown = ElasticDistributedSampler(100, global_batch_size=16)
    grown.global_batch_size = 64
    assert grown.micro_batch_size == 16, "a pass needs no more memory because the batch has grown"


def make(**settings: Any) -> ElasticDistributedSampler:
    return ElasticDistributedSampler(8, **{"global_batch_size": 4, "rank": 0, "world_size": 1} | settings)


@pytest.mark.parametrize(("epoch", "used"), [(2, 0), (2, 4), (1, 8)])
def test_a_loop_that_begins_with_epoch_0_after_a_restore_is_refused(epoch: int, used: int) -> None:
    sampler = make()
    sampler.load_state_dict({"epoch": epoch, "used": used, "seed": 0, "length": 8})
    with pytest.raises(ConfigurationError, match=r"range\(sampler\.epoch, epochs\)"):
        sampler.set_epoch(0)
    assert sampler.epoch == 2
    for later in range(sampler.epoch, 4):
        sampler.set_epoch(later)
        assert len(list(sampler.steps(list(sampler)))) == (1 if later == 2 and used == 4 else 2)
    sampler.set_epoch(0)  # another training in the same process
    assert len(sampler) == 2


@pytest.mark.parametrize("read", [lambda s: s.steps(list(s)), iter], ids=["steps", "loader"])
def test_an_epoch_that_is_over_is_not_begun_again(
    read: Callable[[ElasticDistributedSampler], Iterator[object]],
) -> None:
    sampler = make()
    assert len(list(sampler.steps(list(sampler)))) == 2
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"epoch 0 is over.*set_epoch"):
            list(read(sampler))
        sampler.set_epoch(0)
    sampler.set_epoch(1)
    assert len(list(sampler.steps(list(sampler)))) == 2


def test_a_loop_with_advance_needs_set_epoch_too() -> None:
    sampler = make()
    for _ in sampler:
        sampler.advance()
    with pytest.raises(ConfigurationError, match="epoch 0 is over"):
        list(sampler)


def test_an_evaluation_with_the_plan_is_repeated() -> None:
    sampler = make()
    assert [len(list(zip(sampler.plan(), sampler, strict=True))) for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize(("count", "word"), [(1, "fewer"), (3, "more")])
def test_a_loader_with_other_batches_is_named_with_the_remedy(count: int, word: str) -> None:
    with pytest.raises(ValueError, match=rf"{word} batches than the sampler.*batch_sampler=sampler"):
        list(make().steps([0] * count))


@pytest.mark.parametrize("seed", [0, 5])
def test_another_seed_than_the_saved_one_is_told(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    sampler = make(seed=seed)
    sampler.load_state_dict({"epoch": 0, "used": 4, "seed": 5, "length": 8})
    assert ("seed=0" in caplog.text) == (seed == 0)


def test_a_saved_position_that_a_loop_never_moves_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A loop over the loader itself, as with torch's sampler: a restart would see the samples again."""
    sampler = ElasticDistributedSampler(8, global_batch_size=4, rank=0, world_size=1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for _ in DataLoader(range(8), batch_sampler=sampler):  # type: ignore[arg-type]
            sampler.state_dict()  # a save
    assert caplog.text.count("call sampler.advance()") == 1


def test_a_saved_position_that_does_not_move_within_one_long_epoch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ElasticDistributedSampler(400, global_batch_size=1, rank=0, world_size=1)
    for _ in sampler:
        sampler.state_dict()
    assert caplog.text.count("call sampler.advance()") == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["steps", "advance", "evaluation"])
def test_a_position_that_moves_is_not_told_of(how: str, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    sampler = ElasticDistributedSampler(600, global_batch_size=2, micro_batch_size=1, rank=0, world_size=1)
    loader: DataLoader[int] = DataLoader(range(600), batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    for epoch in range(3 if workers == 0 else 1):
        sampler.set_epoch(epoch)
        if how == "steps":
            for _ in sampler.steps(loader):
                sampler.state_dict()
        elif how == "evaluation":
            list(loader)
        else:
            for number, _ in enumerate(loader):
                if number % 2:
                    sampler.advance()
                    sampler.state_dict()
    assert "sampler.advance()" not in caplog.text
