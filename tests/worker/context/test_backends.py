"""The choice of the backend as a table, and the error for each check that can fail."""

from __future__ import annotations

import pytest

from elasticjob.context.backends import BOTH, BackendFacts, choose_backend, observe_backends
from elasticjob.errors import BackendUnavailableError

CPU = BackendFacts()
GPU = BackendFacts(cuda_devices=2, cuda_built=True, nccl=True)


@pytest.mark.parametrize(
    ("facts", "requested", "local_ranks", "backend", "device"),
    [
        pytest.param(CPU, None, 1, "gloo", "cpu", id="no GPU"),
        pytest.param(GPU, None, 2, BOTH, "cuda", id="GPUs and NCCL"),
        pytest.param(GPU, "auto", 1, BOTH, "cuda", id="auto is the same as nothing"),
        pytest.param(BackendFacts(cuda_devices=1, nccl=True, gloo=False), None, 1, "nccl", "cuda", id="no gloo"),
        pytest.param(BackendFacts(cuda_devices=2, cuda_built=True), None, 2, "gloo", "cuda", id="GPUs without NCCL"),
        pytest.param(GPU, None, 3, "gloo", "cuda", id="more processes than GPUs"),
        pytest.param(GPU, "gloo", 2, "gloo", "cpu", id="gloo by name"),
        pytest.param(GPU, "nccl", 2, "nccl", "cuda", id="nccl by name"),
        pytest.param(GPU, BOTH, 2, BOTH, "cuda", id="both by name"),
        pytest.param(CPU, "GLOO", 1, "GLOO", "cpu", id="capital letters"),
        pytest.param(BackendFacts(mpi=True), "mpi", 1, "mpi", "cpu", id="mpi where torch has it"),
    ],
)
def test_choose_backend(
    facts: BackendFacts, requested: str | None, local_ranks: int, backend: str, device: str
) -> None:
    choice = choose_backend(facts, requested, local_ranks)
    assert (choice.backend, choice.device_type) == (backend, device)
    assert choice.reason


@pytest.mark.parametrize(
    ("facts", "local_ranks", "reason"),
    [
        pytest.param(CPU, 3, "no CUDA device", id="no GPU"),
        pytest.param(BackendFacts(cuda_devices=2, cuda_built=True), 3, "this torch has no NCCL", id="no NCCL"),
        pytest.param(GPU, 3, "3 processes share 2 CUDA devices", id="too few GPUs"),
    ],
)
def test_why_gloo_is_chosen(facts: BackendFacts, local_ranks: int, reason: str) -> None:
    assert reason in choose_backend(facts, None, local_ranks).reason


@pytest.mark.parametrize(
    ("facts", "requested", "local_ranks", "words"),
    [
        (CPU, "nccl", 1, ["is_nccl_available() is false", "CUDA build of torch"]),
        (BackendFacts(nccl=True, cuda_built=True), "nccl", 1, ["cuda.is_available() is false", "nvidia.com/gpu"]),
        (GPU, "nccl", 3, ["3 processes share 2 CUDA devices", "nprocPerNode"]),
        (GPU, "cpu:gloo,cuda:nccl", 3, ["3 processes share 2"]),
        (CPU, "mpi", 1, ["is_mpi_available() is false", "build torch from source"]),
        (CPU, "horovod", 1, ["'horovod' is unknown", "use auto"]),
        (CPU, "torch_elastic", 1, ["'torch_elastic' is unknown"]),
        (BackendFacts(gloo=False), None, 1, ["no backend", "is_gloo_available() is false"]),
        (BackendFacts(gloo=False), "gloo", 1, ["is_gloo_available() is false"]),
        (BackendFacts(distributed=False, gloo=False), None, 1, ["built without torch.distributed"]),
    ],
)
def test_what_cannot_work_says_why(facts: BackendFacts, requested: str, local_ranks: int, words: list[str]) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        choose_backend(facts, requested, local_ranks)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_facts_are_those_of_torch() -> None:
    import torch

    facts = observe_backends()
    assert facts.gloo is torch.distributed.is_gloo_available()
    assert facts.mpi is torch.distributed.is_mpi_available()
    assert facts.cuda_devices == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
