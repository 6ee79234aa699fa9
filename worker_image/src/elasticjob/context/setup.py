"""`elasticjob.init()`: joins the world that the launcher describes, or creates a world of one process.

It chooses backend, device and network interface from observed facts, sets the timeout of collectives, and leaves the
world at exit. The returned `World` records what was chosen and why.
"""

from __future__ import annotations

import atexit
import datetime
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticjob.context import backends, leaving, network
from elasticjob.context.context import Context, current
from elasticjob.errors import CollectiveFailedError, ConfigurationError
from elasticjob.torchcompat import xla

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT = 600.0  # seconds until a blocked collective is an error
_FAILED_SECONDS = 10.0  # for a save that is under way when the script fails


@dataclass(frozen=True)
class World:
    """This process and its world. Created by `init()`."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str
    reason: str  # why this backend was chosen
    generation: int  # the number of this world; grows with every regroup
    restarts: int
    repeats: int  # of these, in a row with the same error at the same place; 0 for the first one
    elastic: bool  # an elastic agent started this process, as in torch.distributed.is_torchelastic_launched()
    interface: str  # the network interface; empty if the backend chooses

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which logs and saves."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        import torch.distributed as dist

        dist.barrier()

    def subgroup(self, ranks: Sequence[int], **options: Any) -> Any:
        """Create a process group of some ranks of the world. Every rank of the world must call it, even non-members.

        `options` are those of torch's `new_group`. Raises ConfigurationError for duplicate ranks or ranks outside of
        the world.
        """
        import torch.distributed as dist

        wrong = [rank for rank in ranks if not 0 <= rank < self.world_size]
        if wrong or len(set(ranks)) != len(ranks) or not ranks:
            raise ConfigurationError(
                f"subgroup({list(ranks)}): ranks must be distinct and from 0 to {self.world_size - 1}."
            )
        return dist.new_group(list(ranks), **options)

    def close(self) -> None:
        """Leave the world. Also called at exit; repeated calls are harmless."""
        _destroy()

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.barrier()  # no rank disconnects while another still communicates
        _destroy(None if kind is None else _FAILED_SECONDS)


def init(
    backend: str | None = None, timeout: float = DEFAULT_TIMEOUT, checked: bool = False, threads: int | None = None
) -> World:
    """Set up `torch.distributed`, and return this process's `World`.

    `backend` is chosen automatically if left out; a backend requested by name must be available, or the error names
    what is missing. `timeout` is in seconds, until a blocked collective is an error. `checked` turns on torch's
    consistency checks (see also `elasticjob.checked()`). `threads` is the number of CPU threads of this process, by
    default the launcher's OMP_NUM_THREADS.

    An existing process group is described and left unchanged. Raises ConfigurationError for an invalid variable or
    argument, CollectiveFailedError if the world cannot be joined in time, and BackendUnavailableError for a backend
    that cannot work here.
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
        from elasticjob.torchcompat import groups

        _join(here, choice.backend, timeout)
        groups.keep_gloo()
        atexit.register(_destroy)
    problem = xla.find_problem(xla.count_processes(os.environ, sys.modules), dist.get_world_size())
    if problem is not None and dist.get_rank() == 0:
        warnings.warn(f"{problem}: {xla.REMEDY}.", RuntimeWarning, stacklevel=2)
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
        repeats=here.repeats,
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
        raise CollectiveFailedError(
            f"rank {here.rank} of {here.world_size} could not join the world at "
            f"{here.master_address}:{here.master_port} ({backend}): {first_line} -- Check that all ranks were "
            "started, and run `elasticjob doctor` in the pods: it tests names, ports and the network."
        ) from error


def _destroy(seconds: float | None = None) -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        from elasticjob.torchcompat import groups

        leaving.leave(seconds)

        groups.destroy_groups()
