"""The world that a session is in: its process group, entered and left as often as the world changes."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from elasticjob import control, store, wire
from elasticjob.env import GENERATION

_FORM_SECONDS = 30.0
_SIGNS = ("gloo", "nccl", "connection", "socket", "peer", "process group", "store", "timed out", "aborted")


class ProcessGroups:
    """torch's default group of the present world, and one for small messages on the CPU."""

    def __init__(self, backend: str, timeout: float) -> None:
        self._backend = backend
        self._timeout = datetime.timedelta(seconds=timeout)
        self.flags: Any = None

    def enter(self, world: control.Message, is_lost: Callable[[], bool]) -> None:
        """Join the world that the agent described, unless it is lost before its store has answered."""
        where = wire.Store(str(world["address"]), int(world["port"]))
        inner = store.connect(where, is_lost, time.monotonic() + _FORM_SECONDS)
        if inner is None:
            raise RuntimeError("the process group is over: a member was lost before it was made")
        os.environ.update(
            {
                "RANK": str(world["rank"]),
                "WORLD_SIZE": str(world["worldSize"]),
                "GROUP_RANK": str(world["groupRank"]),
                "GROUP_WORLD_SIZE": str(world["groupWorldSize"]),
                "MASTER_ADDR": str(world["address"]),
                "MASTER_PORT": str(world["port"]),
                "TORCHELASTIC_RESTART_COUNT": str(world["restarts"]),
                GENERATION: str(world["generation"]),
            }
        )
        prefixed: Any = dist.PrefixStore("elasticjob/session", inner)  # type: ignore[attr-defined]
        rank, size = int(world["rank"]), int(world["worldSize"])
        # torch names groups by counting, and counts those too that it could not make: ranks that failed to enter an
        # earlier world would look for the others under another name.
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group(self._backend, store=prefixed, rank=rank, world_size=size, timeout=self._timeout)
        # With gloo the same group serves both.
        self.flags = dist.group.WORLD if self._backend == "gloo" else dist.new_group(backend="gloo")

    def enter_fixed(self, alone: bool) -> None:
        """Without an agent that regroups: the world of the launcher's variables; `alone` makes one of this process."""
        if dist.is_initialized():
            return
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group(self._backend, timeout=self._timeout)
        elif alone:
            here: Any = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(self._backend, store=here, rank=0, world_size=1)

    def leave(self, broken: bool) -> None:
        if dist.is_initialized():
            if broken:
                self.abort()
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        self.flags = None

    def abort(self) -> None:
        """Free the main thread from a collective that waits for somebody who is gone. From any thread."""
        if not dist.is_initialized():
            return
        for group in {id(g): g for g in (dist.group.WORLD, self.flags) if g is not None}.values():
            with contextlib.suppress(RuntimeError, AttributeError, ValueError):
                group.abort()


def world_of(environ: Mapping[str, str]) -> control.Message:
    """The world in which the agent started this process, as the relay would describe it."""
    return {
        "generation": int(environ[GENERATION]),
        "rank": int(environ["RANK"]),
        "worldSize": int(environ["WORLD_SIZE"]),
        "groupRank": int(environ.get("GROUP_RANK", "0")),
        "groupWorldSize": int(environ.get("GROUP_WORLD_SIZE", "1")),
        "address": environ["MASTER_ADDR"],
        "port": int(environ["MASTER_PORT"]),
        "restarts": int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }


def is_world_failure(error: Exception) -> bool:
    """Whether an exception means that the world broke, rather than that the script has a mistake."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    if not isinstance(error, RuntimeError | OSError) or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)


def first_line(error: BaseException) -> str:
    lines: list[str] = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]
