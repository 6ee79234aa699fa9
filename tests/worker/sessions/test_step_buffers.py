"""What a broken step has done to the buffers of a model is taken back."""

from __future__ import annotations

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


def test_an_evaluation_that_is_broken_off_leaves_no_module_in_eval() -> None:
    """A script calls `model.eval()` and `model.train()` around it, without `finally`."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.BatchNorm1d(2).eval())
    buffers = StepBuffers(model)
    buffers.keep_again()
    model.eval()
    torch.set_grad_enabled(False)  # as an interrupt in `no_grad` itself leaves it
    buffers.take_back()
    assert torch.is_grad_enabled()
    assert [one.training for one in model.modules()] == [True, True, True, False], "as they were"
    buffers.keep_again()
    model.eval()
    buffers.forget()
    buffers.take_back()
    assert not model.training, "the block came to its end: what the script has set holds"
