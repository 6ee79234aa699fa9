"""What a session takes back of a broken step, without processes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from elasticjob.collectives import skeletons
from elasticjob.errors import ConfigurationError
from elasticjob.sessions import late_groups, model_state, recovery, transfer
from elasticjob.sessions.memory import Memory
from elasticjob.sessions.model_state import ReplicatedModelState
from elasticjob.sessions.recovery import StateLostError
from elasticjob.sessions.sharded.model import ShardedModelState
from elasticjob.sessions.undo import Undo


def ignore(*_: Any) -> None:
    pass


def test_a_broken_step_is_repeated_with_its_gradient_scaler() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    memory = Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, {"scaler": scaler})
    memory.begin()
    memory.take_back(1, True, False)  # broken before the scaler was used

    def compute() -> None:
        memory.begin()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)

    compute()
    before, weight = scaler.state_dict(), model.weight.detach().clone()
    memory.take_back(1, True, False)
    assert scaler.state_dict() == before
    compute()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, weight - 0.5), "the gradient of one pass, unscaled once"


def make_memory(**extras: Any) -> tuple[Memory, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, extras), optimizer


def test_no_step_is_counted_when_torch_fills_the_state_of_an_optimizer() -> None:
    """torch's `get_optimizer_state_dict` steps an optimizer without state, with zeros, and does so again for SGD."""
    calls: list[str] = []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hooks = (lambda *_: calls.append("before"), lambda *_: calls.append("after"))
    ReplicatedModelState(model, optimizer, hooks)
    get_optimizer_state_dict(model, optimizer)
    assert not calls
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_a_step_of_a_warm_up_with_a_rate_of_zero_counts() -> None:
    calls: list[str] = []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    ReplicatedModelState(model, optimizer, (ignore, lambda *_: calls.append("after")))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert calls == ["after"]


def test_a_broken_step_draws_its_random_numbers_again() -> None:
    memory, _ = make_memory()

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.rand()), float(torch.rand(1))]

    memory.begin()
    before = draw()
    memory.take_back(1, True, False)
    assert draw() == before
    memory.begin()
    memory.commit()
    assert draw() != before, "a step that is applied is not drawn again"


@pytest.mark.parametrize(
    ("before", "broken", "step"),
    [
        pytest.param([], "", 0, id="nothing was applied"),
        pytest.param([], "dg", None, id="the first step, by both, or more was to come"),
        pytest.param(["dg"], "dg", 2, id="the second step, by both"),
        pytest.param([], "d", None, id="the first step, by one of two"),
        pytest.param(["dg", "dg"], "g", None, id="a later one, by the session's own only"),
        pytest.param(["d", "d"], "d", None, id="the other one never steps, or was to come"),
        pytest.param(["ddg"], "dg", None, id="one that steps twice has stepped once"),
        pytest.param(["ddg"], "ddg", 2, id="all of it"),
        pytest.param(["ddg", "d"], "dg", None, id="fewer calls between do not count"),
    ],
)
def test_a_loss_between_the_steps_of_two_optimizers(before: list[str], broken: str, step: int | None) -> None:
    """`step`: that of the state; None if the state is torn."""
    model = torch.nn.Linear(2, 1)
    optimizers = {"g": torch.optim.SGD([model.weight], lr=0.5), "d": torch.optim.SGD([model.bias], lr=0.5)}
    memory = Memory(ReplicatedModelState(model, optimizers["g"], (ignore, ignore)), None, {"d": optimizers["d"]})
    memory.committed = 0
    for one in before:
        memory.begin()
        for name in one:
            memory.note_applied(optimizers[name])
        memory.commit()
    memory.begin()
    for name in broken:
        memory.note_applied(optimizers[name])
    memory.take_back(1, True, False)
    if step is None:
        with pytest.raises(StateLostError):
            memory.agree(None)
    else:
        memory.agree(None)
        assert memory.committed == step


def test_a_loss_after_a_step_was_counted_does_not_count_it_twice() -> None:
    memory, optimizer = make_memory()
    memory.begin()
    memory.note_applied(optimizer)
    memory.commit()
    memory.take_back(1, True, False)
    assert memory.committed == 0


@pytest.mark.parametrize(
    ("broken", "is_taken_back"),
    [
        pytest.param("d", True, id="the first of two"),
        pytest.param("dd", True, id="the first of two, twice"),
        pytest.param("g", True, id="in another order"),
        pytest.param("dg+", False, id="the last one had begun"),
    ],
)
def test_optimizers_with_separate_backward_passes_are_taken_back(broken: str, is_taken_back: bool) -> None:
    model = torch.nn.Linear(2, 1)
    parts = {"g": model.weight, "d": model.bias}
    optimizers = {name: torch.optim.SGD([part], lr=0.5, momentum=0.9) for name, part in parts.items()}

    def begin(one: Any, *_: Any) -> None:
        memory.note_applying(one)

    def end(one: Any, *_: Any) -> None:
        memory.note_applied(one)

    hooks = begin, end
    memory: Memory = Memory(ReplicatedModelState(model, optimizers["g"], hooks), None, {"d": optimizers["d"]})
    model_state.hook(optimizers["d"], hooks)

    def step(names: str) -> None:
        memory.begin()
        for name in names:
            model(torch.ones(1, 2)).sum().backward()
            if name == "+":
                memory.note_applying(optimizers["g"])
            else:
                optimizers[name].step()

    def read() -> list[Any]:
        everything: list[Any] = [model, *optimizers.values()]
        return [copy.deepcopy(one.state_dict()) for one in everything]

    for _ in range(2):
        step("dg")
        memory.commit(is_divided=True)
    before = read()
    step(broken)
    memory.take_back(1, True, False)
    if not is_taken_back:
        with pytest.raises(StateLostError):
            memory.agree(None)
        return
    memory.agree(None)
    assert memory.committed == 1
    assert str(read()) == str(before)


def test_other_objects_are_taken_back_with_the_optimizers() -> None:
    """A scheduler that the script steps in the block. The other optimizer steps in every fifth step, say."""
    model = torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD([one], lr=0.5) for one in model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    extras = {"second": second, "scheduler": scheduler}
    memory: Memory = Memory(ReplicatedModelState(model, first, (ignore, ignore)), None, extras)
    memory.begin()
    memory.note_applying(first)
    first.step()
    memory.note_applied(first)
    scheduler.step()
    memory.take_back(1, True, False)
    assert (scheduler.last_epoch, first.param_groups[0]["lr"]) == (0, 0.5)


def test_what_a_hook_of_the_optimizer_counts_is_taken_back_where_another_rank_may_have_made_the_step() -> None:
    """The state after the step is kept beside that before it, and the session makes the step for that."""
    average = torch.nn.Linear(2, 1)
    memory, optimizer = make_memory(average=average)
    before = average.weight.detach().clone()

    def forget(*_: Any) -> None:
        torch.nn.init.zeros_(average.weight)

    optimizer.register_step_post_hook(forget)
    memory.begin()
    memory.take_back(1, True, True)
    assert torch.equal(average.weight, before)


def test_a_step_with_an_earlier_micro_batch_is_torn() -> None:
    """A script that steps the optimizer in each of them."""
    memory, optimizer = make_memory()
    for _ in range(2):
        memory.begin()
        memory.note_applying(optimizer)
        memory.note_applied(optimizer)
    memory.begin()
    memory.take_back(1, False, False)
    with pytest.raises(StateLostError):
        memory.agree(None)


def test_optimizers_that_step_together_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(Undo, "keep", lambda _, optimizer: kept.append(optimizer))
    model = torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([one], lr=0.5) for one in model.parameters()]
    memory = Memory(ReplicatedModelState(model, optimizers[0], (ignore, ignore)), None, {"d": optimizers[1]})
    for _ in range(3):
        memory.begin()
        for one in optimizers:
            memory.note_applying(one)
            memory.note_applied(one)
        memory.commit(is_divided=False)
    assert kept == [optimizers[0]], "in the first step nobody knows"


@pytest.mark.parametrize("skips", [False, True])
def test_an_optimizer_that_no_scaler_has_skipped_was_still_to_come(skips: bool) -> None:
    """The scaler of the first one of two has been updated, and the loss breaks the backward pass of the second one."""
    model = torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD([one], lr=0.5) for one in (model.weight, model.bias))
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
    extras = {"second": second, "scaler": scalers[0], "scaler_of_second": scalers[1]}
    memory = Memory(ReplicatedModelState(model, first, (ignore, ignore)), None, extras)

    def apply(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, skips: bool = False) -> None:
        """What a session does when the script calls `step` and `update` of a scaler."""
        torch.autograd.backward(scaler.scale(model(torch.ones(1, 2)).sum()))
        if skips:
            model.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
        else:
            memory.note_applying(optimizer)
        scaler.step(optimizer)
        if not skips:
            memory.note_applied(optimizer)
        memory.note_passed(optimizer)
        memory.note_learning()
        scaler.update()
        optimizer.zero_grad()

    for _ in range(2):
        memory.begin()
        apply(first, scalers[0])
        apply(second, scalers[1])
        memory.commit(is_divided=True)
    before = [one.clone() for one in model.parameters()], [one.state_dict() for one in scalers]
    memory.begin()
    apply(first, scalers[0], skips)
    memory.take_back(1, True, False, was_skipped=True)
    assert memory.committed == 1
    assert memory._clean
    assert [torch.equal(one, was) for one, was in zip(model.parameters(), before[0], strict=True)] == [True] * 2
    assert [one.state_dict() for one in scalers] == before[1]
    memory.begin()
    apply(first, scalers[0], skips)
    apply(second, scalers[1])
    memory.take_back(1, True, False, was_skipped=True)
    assert memory.committed == 2, "both have stepped, or were skipped"


def make_optimizer() -> tuple[torch.optim.Optimizer, torch.nn.Sequential]:
    """One that trains the first of two layers."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.5, momentum=0.9)
    late_groups.allow_repeats([optimizer])
    return optimizer, model


@pytest.mark.parametrize(
    "give", [pytest.param(lambda one: one, id="tensor"), lambda one: [one], lambda one: iter([one])]
)
def test_a_group_that_is_there_is_not_added_again(give: Callable[[torch.Tensor], Any]) -> None:
    optimizer, model = make_optimizer()
    for _ in range(2):
        optimizer.add_param_group({"params": give(next(model[1].parameters()))})
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]


def test_a_group_without_an_order_is_refused_as_torch_does() -> None:
    optimizer, model = make_optimizer()
    with pytest.raises(TypeError, match="set"):
        optimizer.add_param_group({"params": {*model[1].parameters()}})


def test_a_rank_that_has_added_a_group_in_a_broken_step_takes_the_state_of_one_that_has_not() -> None:
    (theirs, their_model), (mine, my_model) = make_optimizer(), make_optimizer()
    their_model(torch.ones(1, 2)).sum().backward()
    theirs.step()
    state = theirs.state_dict()
    mine.add_param_group({"params": my_model[1].parameters(), "lr": 0.25})
    named = late_groups.name_parameters({"": my_model})
    groups = late_groups.read(theirs, late_groups.name_parameters({"": their_model}))
    late_groups.take(mine, groups, state, named)
    mine.load_state_dict(state)
    assert [group["lr"] for group in mine.param_groups] == [0.5, 0.25]
    assert len(mine.state_dict()["state"]) == 2, "the momentum of the first group"


def test_a_session_goes_back_to_a_step_before_a_group_was_added() -> None:
    optimizer, model = make_optimizer()
    second, other = make_optimizer()
    memory = Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, {"second": second})
    kept = memory.copy()
    for one, layers in ((optimizer, model), (second, other)):
        one.add_param_group({"params": layers[1].parameters(), "lr": 0.25})
    for _ in range(2):  # the copy stays what it is
        memory.go_back(kept)
        assert [[group["lr"] for group in one.param_groups] for one in (optimizer, second)] == [[0.5, 0.25]] * 2


def test_a_sharded_model_gets_no_groups_that_the_next_world_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, model = make_optimizer()
    state = ShardedModelState(lambda _: (model, optimizer), (ignore, ignore), None, None)
    monkeypatch.setattr(state, "_mesh", SimpleNamespace(size=lambda: 1))
    state.bind(1)
    state.check_groups()
    optimizer.add_param_group({"params": model[1].parameters()})
    with pytest.raises(ConfigurationError, match=r"has 2 parameter groups.*Make all of them in build\(mesh\)"):
        state.check_groups()


def test_a_state_that_was_loaded_in_part_is_no_complete_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may have no memory left for it. In a lost world that ends nobody, and this rank votes in the next."""
    memory, _ = make_memory()
    memory.committed = 3

    def fail(_: Any) -> None:
        raise torch.OutOfMemoryError("in the middle of it")

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(transfer.Exchange, "run", lambda *_: {"groups": {}, "extras": {}, "optimizer": None})
    monkeypatch.setattr(memory.model_state, "load", fail)
    monkeypatch.setattr(late_groups, "take", ignore)
    states = [recovery.RankState(4, True, 1), recovery.RankState(3, True, 2)]
    with pytest.raises(torch.OutOfMemoryError):
        memory._receive({}, states, None)
    assert not memory._clean


class Average:
    """An extra that takes what it loads as it is."""

    def __init__(self, device: str) -> None:
        self.parts = [torch.zeros(2, device=device), torch.zeros(2)]

    def state_dict(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts = state["parts"]


def test_what_is_received_in_host_memory_is_on_the_device_again_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device without room for both states. Meta tensors are those of a device here."""
    model = torch.nn.Linear(2, 2, device="meta")
    model.register_buffer("seen", torch.zeros(3, device="meta"))
    average = Average("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    memory = Memory(ReplicatedModelState(model, optimizer, (ignore, ignore)), None, {"average": average})
    memory.committed = 5
    monkeypatch.setattr(skeletons, "digest", lambda tensor: 1)
    mine = transfer.take_inventory(memory._state())
    model.seen = torch.zeros(4, device="meta")  # the source has seen one more
    theirs = transfer.take_inventory(memory._state())
    model.seen = torch.zeros(3, device="meta")
    make_room, is_full = transfer._make_room, [True]

    def make_or_fail(slot: Any, device: torch.device) -> torch.Tensor:
        if is_full and device.type == "meta":
            is_full.clear()
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return make_room(slot, device)

    def run(exchange: transfer.Exchange, given: transfer.Inventory) -> dict[str, Any]:
        for section in theirs.values():
            section.digests = [2 for _ in section.digests]
        tensors = exchange._prepare_all(given, theirs)
        assert exchange.is_aside
        assert {one.device.type for those in tensors.values() for one in those} == {"cpu"}
        return {name: skeletons.join(one.skeleton, tensors[name]) for name, one in theirs.items()}

    monkeypatch.setattr(transfer, "_make_room", make_or_fail)
    monkeypatch.setattr(transfer.Exchange, "run", run)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    states = [recovery.RankState(6, True, 2), recovery.RankState(5, True, 1)]
    with pytest.warns(UserWarning, match="meta"):  # a copy to it does nothing
        memory._receive(mine, states, None)
    assert (memory.committed, model.seen.shape) == (6, (4,))
    assert {one.device.type for one in [*model.parameters(), *model.buffers()]} == {"meta"}
    assert [one.device.type for one in average.parts] == ["meta", "cpu"]
