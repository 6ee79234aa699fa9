"""How a session waits for a CUDA device, by a model of its streams. `make gpu` tries a real one."""

from __future__ import annotations

import pytest
import torch

from elasticjob.torchcompat import devices
from worker.fake_cuda import FakeCuda, Stream

pytestmark = pytest.mark.timeout(30)

CUDA = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def find(backend: str = "nccl", device: torch.device = CUDA) -> devices.Waits:
    found = devices.find_waits(backend, device)
    assert found is not None
    return found


@pytest.mark.parametrize("backend", ["nccl", "nccl-legacy", "cpu:gloo,cuda:nccl"])
def test_who_waits_for_a_stream_goes_on_when_the_device_has_done_what_is_queued_there(
    cuda: FakeCuda, backend: str
) -> None:
    done: list[str] = []
    cuda.put(lambda: done.append("gradients"))
    find(backend).for_stream()
    assert done == ["gradients"]


def test_that_is_the_stream_of_the_script_and_what_it_waits_for(cuda: FakeCuda) -> None:
    """A script may train in a stream of its own. What another one does is waited for only if that one is."""
    done: list[str] = []
    own, reducing, copying = Stream(cuda), Stream(cuda), Stream(cuda)
    cuda.prefers = cuda.first
    with cuda.use(reducing):
        cuda.put(lambda: done.append("reduced"))
    with cuda.use(copying):
        cuda.put(lambda: done.append("copied"))
    with cuda.use(own):
        own.wait_stream(reducing)
        cuda.prefers = own
        find().for_stream()
        assert done == ["reduced"]
        find().for_all()
    assert done == ["reduced", "copied"]


@pytest.mark.parametrize(
    ("backend", "device"), [("gloo", CUDA), ("gloo", torch.device("cpu")), ("cpu:gloo,cuda:nccl", torch.device("cpu"))]
)
def test_nothing_is_queued_with_gloo(backend: str, device: torch.device) -> None:
    """A collective is done when its call returns, also of tensors on a device; and so is one of tensors on the CPU."""
    assert devices.find_waits(backend, device) is None
