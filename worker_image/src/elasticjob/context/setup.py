"""`elasticjob.init()`: join the world that the launcher describes, or be a world of one.

It chooses backend, device and network interface by fact, sets the time limit of collectives, and leaves the world at
exit. It never guesses silently: the returned `World` says what was chosen and why.
"""

from __future__ import annotations

import atexit
import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticjob.context import backends, network
from elasticjob.context.context import Context, current
from elasticjob.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT = 600.0  # seconds; what a collective may take before it is an error


@dataclass(frozen=True)
class World:
    """This process and the world it is in. Made by `init()`."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str
    reason: str  # why this backend
    generation: int  # the number of this world; grows with every regroup
    restarts: int
    elastic: bool  # an elastic agent started us, as torch.distributed.is_torchelastic_launched()
    interface: str  # the network interface, or empty: the backend's own choice

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which logs and saves."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        import torch.distributed as dist

        dist.barrier()

    def subgroup(self, ranks: Sequence[int], **options: Any) -> Any:
        """A group of some of the world's ranks. Every rank of the world calls it, also those that are not in it.

        `options` are those of torch's `new_group`. Raises ConfigurationError for ranks that are not there.
        """
        import torch.distributed as dist

        wrong = [rank for rank in ranks if not 0 <= rank < self.world_size]
        if wrong or len(set(ranks)) != len(ranks) or not ranks:
            raise ConfigurationError(
                f"subgroup({list(ranks)}): ranks must be distinct and from 0 to {self.world_size - 1}."
            )
        return dist.new_group(list(ranks), **options)

    def close(self) -> None:
        """Leave the world. Also done at exit; harmless if done twice."""
        _destroy()

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.barrier()  # nobody hangs up while another still listens
        self.close()


def init(
    backend: str | None = None, timeout: float = DEFAULT_TIMEOUT, checked: bool = False, threads: int | None = None
) -> World:
    """Set up `torch.distributed` and return who and where we are.

    `backend`: by fact if left out; by name it must be available, else the error says what is missing. `timeout`:
    seconds until a collective that does not end is an error. `checked`: turn torch's consistency checks on (see also
    `elasticjob.checked()`). `threads`: CPU threads of this process; the launcher's OMP_NUM_THREADS if left out.

    If a process group is already there, it is described and left as it is. Raises ConfigurationError for a variable or
    an argument that is broken and where the world cannot be joined in time, BackendUnavailableError for a backend that
    cannot work here.
    """
    import torch
    import torch.distributed as dist

    here = current()
    if timeout <= 0:
        raise ConfigurationError(f"timeout={timeout} must be more than 0 seconds.")
    choice = backends.choose_backend(backends.observe_backends(), backend, here.local_world_size)
    device = torch.device("cpu")
    if choice.device_type == "cuda":
        device = torch.device("cuda", here.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    world_is_local = here.world_size == here.local_world_size
    wanted = network.find_interface(network.read_interfaces(), here.pod_ip, here.master_address, world_is_local)
    interface = network.set_interface(os.environ, wanted)
    if not dist.is_initialized():
        if checked:
            from elasticjob.collectives.checked import set_torch_checks

            set_torch_checks()
        _join(here, choice.backend, timeout)
        atexit.register(_destroy)
    return World(
        rank=dist.get_rank(),
        local_rank=here.local_rank,
        world_size=dist.get_world_size(),
        local_world_size=here.local_world_size,
        device=device,
        backend=choice.backend if ":" in choice.backend else str(dist.get_backend()),
        reason=choice.reason,
        generation=here.generation,
        restarts=here.restarts,
        elastic=here.elastic,
        interface=interface,
    )


def _join(here: Context, backend: str, timeout: float) -> None:
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=timeout)
    if not here.launched:
        from torch.distributed import HashStore  # type: ignore[attr-defined]

        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=limit)
        return
    try:
        dist.init_process_group(backend, timeout=limit)
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"rank {here.rank} of {here.world_size} could not join the world at "
            f"{here.master_address}:{here.master_port} ({backend}): {first_line} -- Check that all ranks were "
            "started, and run `elasticjob doctor` in the pods: it tests names, ports and the network."
        ) from error


def _destroy() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
