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

from elasticjob import control, sockets, store, torchcompat, wire
from elasticjob.env import GENERATION
from elasticjob.errors import WorldLostError

_FORM_SECONDS = 30.0
_SIGNS = ("gloo", "nccl", "connection", "socket", "peer", "process group", "store", "timed out", "aborted")


class ProcessGroups:
    """torch's default group of the present world, and one for small messages on the CPU."""

    def __init__(self, backend: str, timeout: float) -> None:
        self._backend = backend
        self._timeout = datetime.timedelta(seconds=timeout)
        self.flags: Any = None
        self._others: frozenset[int] | None = None  # connections from before the world, while it is being made
        self._connections: frozenset[int] = frozenset()  # those that it was made with

    def enter(
        self, world: control.Message, is_lost: Callable[[], bool], connect: Callable[[], None] = lambda: None
    ) -> None:
        """Join the world that the agent described, unless it is lost before its store has answered.

        `connect` makes further groups in it.
        """
        self._others = sockets.find_connections()
        try:
            self._make(world, is_lost)
            connect()
            self._connections = sockets.find_connections() - self._others
        finally:
            self._others = None

    def _make(self, world: control.Message, is_lost: Callable[[], bool]) -> None:
        where = wire.Store(str(world["address"]), int(world["port"]))
        inner = store.connect(where, is_lost, time.monotonic() + _FORM_SECONDS)
        if inner is None:
            raise WorldLostError("a member was lost before the process group was made")
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
        torchcompat.name_groups_anew()
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
        self._connections = frozenset()

    def abort(self) -> None:
        """Free the main thread from a collective, or from making a group, that waits for somebody. From any thread."""
        for group in torchcompat.find_groups():  # those of a mesh too
            with contextlib.suppress(RuntimeError, AttributeError, ValueError):
                group.abort()  # which gloo does not know
        others = self._others
        sockets.shut_down(self._connections if others is None else sockets.find_connections() - others)


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
    if isinstance(error, WorldLostError | getattr(dist, "DistError", WorldLostError)):
        return True
    if not isinstance(error, RuntimeError | OSError) or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)


def first_line(error: BaseException) -> str:
    lines: list[str] = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]
