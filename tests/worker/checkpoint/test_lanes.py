"""The order of what a device copies and what the training does there, by a model of its streams."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from elasticjob.checkpoint.lanes import CudaLane
from worker.fake_cuda import FakeCuda, Memory

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("copies_first", [True, False])
def test_a_snapshot_is_of_its_step_whichever_stream_is_ahead(
    monkeypatch: pytest.MonkeyPatch, copies_first: bool
) -> None:
    """The device copies what the step has computed, and the next step does not overwrite it before that."""
    cuda = FakeCuda(monkeypatch)
    lane = CudaLane(torch.device("cuda", 1))
    cuda.prefers = cuda.streams[-1] if copies_first else cuda.first
    parameter, places = Memory(cuda), [Memory(cuda), Memory(cuda)]
    for step, place in enumerate(places, start=1):
        cuda.put(partial(parameter.fill, step))
        copies: Any = [(place, parameter)]
        lane.queue(copies)
        assert place.value == 0, "the processor does not wait for the copy"
        lane.hold_back()
        lane.hold_back()  # before the next optimizer, too
    cuda.put(partial(parameter.fill, 3))
    assert parameter.value == 0, "nor for the training"
    lane.wait()
    assert places[-1].value == 2
    cuda.run()
    assert [one.value for one in places] == [1, 2]
    assert lane.take_stalls() == 2.0, "the training's stream has waited once for each"
    assert lane.take_stalls() == 0.0
