"""A gang of two: `elasticjob.init()` under a launcher, under an elastic agent, alone, and when it cannot work."""

from __future__ import annotations

import os
import sys
import time
import types
import warnings

import torch.distributed as dist

import elasticjob
from elasticjob.errors import BackendUnavailableError, CollectiveFailedError, ConfigurationError
from worker.programs.phases import run_phase
from worker.programs.saying import say


def launched() -> None:
    world = elasticjob.init(timeout=30, threads=1)
    say("world", [world.rank, world.world_size, world.local_rank, world.backend, str(world.device), world.elastic])
    say("interface", [world.interface, os.environ.get("GLOO_SOCKET_IFNAME")])
    say("generation", world.generation)
    say("reason", world.reason)
    group = world.subgroup([1])
    say("subgroup", dist.get_world_size(group) if world.rank == 1 else None)
    try:
        world.subgroup([0, 2])
    except ConfigurationError as error:
        say("wrong subgroup", str(error))
    again = elasticjob.init()
    say("again", again.rank == world.rank)
    world.barrier()
    world.close()
    world.close()
    say("closed", not dist.is_initialized())


def elastic() -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "run"
    os.environ["ELASTICJOB_GENERATION"] = "7"
    with elasticjob.init(checked=True, timeout=30) as world:
        say("elastic", [world.elastic, dist.is_torchelastic_launched(), world.generation, world.restarts])
        try:
            dist.all_reduce(__import__("torch").ones(2 + world.rank))
        except RuntimeError as error:
            say("torch check", "Detected mismatch between collectives" in str(error))


def refused() -> None:
    for backend in ("nccl", "mpi", "nonsense"):
        try:
            elasticjob.init(backend=backend)
        except BackendUnavailableError as error:
            say(backend, str(error))


def alone() -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        del os.environ[name]
    with elasticjob.init() as world:
        say(
            "alone",
            [world.rank, world.world_size, world.elastic, elasticjob.all_reduce(__import__("torch").ones(1)).item()],
        )


def nobody() -> None:
    os.environ |= {"MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    started = time.monotonic()
    try:
        elasticjob.init(timeout=2)
    except CollectiveFailedError as error:
        say("nobody", [str(error), time.monotonic() - started])


def beside_xla() -> None:
    """A stub has the place of torch_xla, which this torch cannot load."""
    sys.modules["torch_xla"] = types.ModuleType("torch_xla")
    told = []
    for device in ("CPU", "TPU"):
        os.environ["PJRT_DEVICE"] = device
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            elasticjob.init(timeout=30)
        told.append([str(one.message) for one in caught if "torch_xla" in str(one.message)])
    say("beside torch_xla", told)


def main() -> None:
    run_phase(1, 2, launched)
    run_phase(2, 2, elastic)
    run_phase(3, 1, refused)
    run_phase(4, 1, alone)
    run_phase(5, 1, nobody)
    run_phase(6, 2, beside_xla)


if __name__ == "__main__":
    main()
