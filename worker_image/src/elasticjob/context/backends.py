"""Chooses the backend from observed facts. The facts are collected once; the choice is a pure function with a reason.

With CUDA devices and NCCL the choice is `cpu:gloo,cuda:nccl`: NCCL for tensors on the devices, gloo for CPU tensors.
Otherwise it is gloo. MPI is used only if torch was built with it and it is requested by name. A requested backend that
cannot work is an error that names the failed check and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.errors import BackendUnavailableError

KNOWN = ("nccl", "gloo", "mpi", "ucc", "xccl")
BOTH = "cpu:gloo,cuda:nccl"


@dataclass(frozen=True)
class BackendFacts:
    """The capabilities of this machine and this build of torch."""

    distributed: bool = True
    cuda_devices: int = 0
    cuda_built: bool = False
    nccl: bool = False
    gloo: bool = True
    mpi: bool = False
    ucc: bool = False
    xccl: bool = False

    def has(self, backend: str) -> bool:
        return bool(getattr(self, backend))


@dataclass(frozen=True)
class BackendChoice:
    """A backend for `init_process_group`, its device type, and the reason for the choice."""

    backend: str
    device_type: str
    reason: str


def observe_backends() -> BackendFacts:
    """Query torch. This imports torch and looks for devices, but initialises nothing."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return BackendFacts(distributed=False, gloo=False)
    return BackendFacts(
        cuda_devices=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        cuda_built=torch.version.cuda is not None or torch.version.hip is not None,
        nccl=dist.is_nccl_available(),
        gloo=dist.is_gloo_available(),
        mpi=dist.is_mpi_available(),
        ucc=bool(getattr(dist, "is_ucc_available", bool)()),
        xccl=bool(getattr(dist, "is_xccl_available", bool)()),
    )


def choose_backend(facts: BackendFacts, requested: str | None = None, local_ranks: int = 1) -> BackendChoice:
    """The backend for this process. Raises BackendUnavailableError, which names the failed check.

    `requested` is empty, `auto`, a backend, or a map such as `cpu:gloo,cuda:nccl`. `local_ranks` is the number of
    processes on this machine: NCCL needs a device for each.
    """
    if not facts.distributed:
        raise BackendUnavailableError(
            "this torch was built without torch.distributed (torch.distributed.is_available() is false): "
            "install an official build of torch."
        )
    if requested in (None, "", "auto"):
        return _choose_by_fact(facts, local_ranks)
    parts = _parse(str(requested))
    for device_type, backend in parts:
        _check(facts, backend, device_type, local_ranks)
    uses_cuda = any(device == "cuda" or backend == "nccl" for device, backend in parts)
    return BackendChoice(str(requested), "cuda" if uses_cuda and facts.cuda_devices else "cpu", "asked for by name")


def _choose_by_fact(facts: BackendFacts, local_ranks: int) -> BackendChoice:
    if facts.cuda_devices and facts.nccl and local_ranks <= facts.cuda_devices:
        if facts.gloo:
            return BackendChoice(BOTH, "cuda", f"{facts.cuda_devices} CUDA devices and NCCL; gloo for CPU tensors")
        return BackendChoice("nccl", "cuda", f"{facts.cuda_devices} CUDA devices and NCCL")
    if not facts.gloo:
        raise BackendUnavailableError(
            "no backend: torch.distributed.is_gloo_available() is false and NCCL cannot be used. "
            "Install an official build of torch."
        )
    if not facts.cuda_devices:
        return BackendChoice("gloo", "cpu", "no CUDA device")
    if not facts.nccl:
        return BackendChoice("gloo", "cuda", "CUDA devices, but this torch has no NCCL")
    return BackendChoice(
        "gloo", "cuda", f"{local_ranks} processes share {facts.cuda_devices} CUDA devices, which NCCL refuses"
    )


def _parse(text: str) -> list[tuple[str, str]]:
    parts = []
    for piece in text.lower().split(","):
        device, _, backend = piece.strip().rpartition(":")
        if backend not in KNOWN or (device and not device.isalpha()):
            raise BackendUnavailableError(
                f"backend {text!r} is unknown: use auto, {', '.join(KNOWN)} or a map such as {BOTH!r}."
            )
        parts.append((device, backend))
    return parts


def _check(facts: BackendFacts, backend: str, device_type: str, local_ranks: int) -> None:
    if not facts.has(backend):
        remedy = {
            "nccl": "install a CUDA build of torch" if not facts.cuda_built else "install a build of torch with NCCL",
            "gloo": "install an official build of torch",
            "mpi": "build torch from source on a machine with MPI; the official builds do not have it",
        }.get(backend, f"install a build of torch with {backend}")
        raise BackendUnavailableError(
            f"backend {backend} was asked for, but torch.distributed.is_{backend}_available() is false: {remedy}, "
            "or leave the backend out to get one that works."
        )
    if backend == "nccl" and not facts.cuda_devices:
        raise BackendUnavailableError(
            "backend nccl was asked for, but torch.cuda.is_available() is false: run where there is a GPU (in a pod: "
            "`resources.limits.nvidia.com/gpu`), or leave the backend out to get gloo."
        )
    if backend == "nccl" and local_ranks > facts.cuda_devices:
        raise BackendUnavailableError(
            f"backend nccl was asked for, but {local_ranks} processes share {facts.cuda_devices} CUDA devices: "
            "set nprocPerNode (--nproc-per-node) to the number of devices, or use gloo."
        )
