"""What a broken step has done to the buffers of a model is taken back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from elasticjob.sessions.step_buffers import StepBuffers


class Counting(torch.nn.Module):
    assigned: torch.Tensor
    changed: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("assigned", torch.zeros(1))
        self.register_buffer("changed", torch.zeros(1))

    def forward(self) -> None:
        self.assigned = self.assigned + 1
        self.changed += 1


def test_a_buffer_that_the_forward_pass_assigns() -> None:
    model = Counting()
    buffers = StepBuffers(model)
    for _ in range(2):  # two steps are applied
        buffers.keep()
        model()
        buffers.forget()
    buffers.keep()
    model()
    buffers.keep()  # another micro-batch
    model()
    buffers.take_back()
    assert (model.assigned.item(), model.changed.item()) == (2, 2)
    buffers.keep()
    model()
    buffers.forget()
    buffers.take_back()
    assert (model.assigned.item(), model.changed.item()) == (3, 3), "no step is open"


def test_a_buffer_that_was_given_up_between_two_steps_is_left_alone() -> None:
    model = Counting()
    buffers = StepBuffers(model)
    setattr(model, "assigned", None)  # noqa: B010 - its type is that of a tensor
    buffers.keep()
    model.changed += 1
    buffers.take_back()
    assert getattr(model, "assigned", model) is None
    assert model.changed.item() == 0


def test_what_follows_a_step_is_taken_back_without_it() -> None:
    model = Counting()
    buffers = StepBuffers(model)
    buffers.keep()
    model()  # the optimizer steps
    for _ in range(2):
        buffers.keep_again()
        model()
    buffers.take_back()
    assert (model.assigned.item(), model.changed.item()) == (1, 1)
    assert not buffers.is_unsure


def test_a_buffer_that_gets_its_shape_in_the_broken_step() -> None:
    """As those of torch's observers do, which resize them."""
    model = torch.nn.Module()
    model.register_buffer("low", torch.empty(0))
    model.register_buffer("high", torch.zeros(1))
    buffers = StepBuffers(model)
    buffers.keep()
    for one in model.buffers():
        one.resize_(3).fill_(1.0)
    buffers.take_back()
    assert [one.tolist() for one in model.buffers()] == [[], [0.0]]


def make_modes() -> tuple[torch.nn.Module, StepBuffers]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.LayerNorm(2).eval())
    return model, StepBuffers(model)


def evaluate(model: torch.nn.Module, buffers: StepBuffers) -> None:
    model.eval()
    torch.set_grad_enabled(False)  # as an interrupt in `no_grad` itself leaves it
    buffers.keep_again()


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("begin", ["keep", "begin_block"])
@pytest.mark.parametrize("normed", [False, True])
def test_a_block_that_is_broken_off_leaves_no_module_in_eval(begin: str, normed: bool) -> None:
    """A script calls `model.eval()` and `model.train()` around an evaluation, without `finally`."""
    model, _ = make_modes()
    if normed:
        model.append(torch.nn.BatchNorm1d(2))  # type: ignore[operator]
    modes = [one.training for one in model.modules()]
    buffers = StepBuffers(model)
    evaluate(model, buffers)  # one that came to its end
    buffers.forget()
    model.train()
    model.get_submodule("2").eval()
    torch.set_grad_enabled(True)
    getattr(buffers, begin)()
    evaluate(model, buffers)
    buffers.take_back()
    assert torch.is_grad_enabled()
    assert [one.training for one in model.modules()] == modes, "as they were"


def test_each_step_notes_the_modes_anew() -> None:
    model, buffers = make_modes()
    buffers.keep()
    buffers.forget()  # it is applied
    model.eval()
    buffers.keep()
    model.train()
    buffers.keep()  # another micro-batch
    buffers.take_back()
    assert not model.training


def test_a_loss_after_a_block_changes_no_mode() -> None:
    """The script has come to the end of what it did: what it has set holds."""
    model, buffers = make_modes()
    buffers.begin_block()
    evaluate(model, buffers)
    buffers.forget()
    buffers.take_back()
    assert not model.training
    model.train()
    buffers.begin_block()
    model.eval()
    buffers.end_block()  # by an exception of the script, which goes on
    buffers.take_back()
    assert not model.training
    evaluate(model, buffers)  # in no block
    model.train()
    buffers.take_back()
    assert model.training
