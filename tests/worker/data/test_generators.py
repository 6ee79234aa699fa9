"""The random numbers of a process go on where they were, those of a device too."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from elasticjob.data import generators

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """What draws on a device: where it is, is a tensor of the CPU."""
    made = torch.Generator().manual_seed(5)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", made.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", made.set_state)
    return made


def draw(device: torch.Generator | None) -> list[float]:
    found = [random.random(), float(numpy.random.rand()), torch.rand(()).item()]
    return [*found, *([] if device is None else [torch.rand((), generator=device).item()])]


def test_what_is_drawn_again_is_the_same(device: torch.Generator) -> None:
    before = generators.read()
    first = draw(device)
    assert draw(device) != first
    generators.restore(before)
    assert draw(device) == first


def test_a_process_that_has_used_no_device_does_not_begin_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would open a context there. One that has begun since goes on from where it is."""
    for name in ("get_rng_state", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("the device is used"))
    before = generators.read()
    first = draw(None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    generators.restore(before)
    assert draw(None) == first
