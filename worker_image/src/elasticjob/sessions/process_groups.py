"""The process groups of a session, created and destroyed whenever the world changes."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from elasticjob import env
from elasticjob.channel import completion
from elasticjob.channel.place import Place
from elasticjob.errors import CollectiveFailedError, ElasticJobError, WorldLostError
from elasticjob.protocol import store, wire
from elasticjob.sessions.endings import Endings
from elasticjob.torchcompat import devices, failures, graphs, groups, nccl, queues, sockets, threads, waits

_FORM_SECONDS = 30.0
_WORD_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_CPU = torch.device("cpu")


class ProcessGroups:
    """torch's default group of the current world, and a CPU group for small messages."""

    def __init__(self, backend: str, timeout: float, device: torch.device = _CPU) -> None:
        """`device` is that of this process, for the collectives of the backend."""
        self._backend = nccl.find_backend(backend)
        self._device = device
        self._waits = devices.find_waits(self._backend, device)
        self._timeout = datetime.timedelta(seconds=timeout)
        self._endings = Endings(device)
        self.flags: Any = None
        self._others: frozenset[int] | None = None  # connections older than the groups, during creation ...
        self._listeners: frozenset[int] = frozenset()  # ... and sockets that listened before ...
        self._pairs = 0  # ... and the number of ranks that connect to this one, at most
        self._connected: set[int] = set()  # groups of this world that have their communicators, by their identity
        self._connections: frozenset[int] = frozenset()  # connections that belong to the groups
        self._kept: dict[int, int] = {}  # descriptors of those of the last world, which other ranks may not have left
        self._keeping = threading.Lock()
        self._world = waits.World()
        threads.free_at_end(self.shut_down)

    def enter(self, place: Place, is_lost: Callable[[], bool], connect: Callable[[], None] = lambda: None) -> None:
        """Join the world that the agent described, unless it is lost before its store has answered.

        `connect` creates further groups in it. Raises WorldLostError if a member was lost.
        """
        self._forget_last()  # all ranks have left it, or there would be no next one
        self._pairs = place.world_size
        self._world = waits.World(has_others=self.is_queued)
        waits.wait_for(self._world)
        if ended := waits.take_ended():
            threads.Thread(groups.drop_gloo, (ended,), "elasticjob-end-stuck").start()
            del ended  # the thread has the last reference
        self._connected = set()
        graphs.enter_world()
        if self.is_queued:
            completion.steps.is_used = True
            queues.enter_world()
        with self.owning():
            self._make(place, is_lost)
            connect()
            self._make_communicators(self._find_unconnected(), is_lost)

    def connect(self, is_lost: Callable[[], bool]) -> None:
        """Make the communicators of groups that a script has made since the world was entered."""
        if found := self._find_unconnected():
            with self.owning():
                self._make_communicators(found, is_lost)

    @property
    def is_queued(self) -> bool:
        """Whether collectives are only queued on a device: a loss is no exception there, but wrong values."""
        return self._waits is not None

    def count_collectives(self) -> int | None:
        """The collectives that were entered so far, or queued; None if torch does not tell."""
        return groups.count_collectives()

    def wait_for_device(self, also_begun: bool = False) -> None:
        """Until the device has done what this thread has queued, or an abort has freed it. `also_begun`: and whatever
        else is under way, such as a collective that nobody waits for yet.
        """
        if self._waits is not None:
            (self._waits.for_all if also_begun else self._waits.for_stream)()

    @contextlib.contextmanager
    def owning(self) -> Iterator[None]:
        """The connections that are made in this block belong to the world, and end with it."""
        self._listeners = sockets.find_listeners()
        self._others = sockets.find_connections() - self._connections
        try:
            yield
        finally:
            self._connections, self._others = sockets.find_connections() - self._others, None

    def _make(self, place: Place, is_lost: Callable[[], bool]) -> None:
        where = wire.Store(place.address, place.port)
        try:
            inner = store.connect(where, is_lost, time.monotonic() + _FORM_SECONDS)
        except OSError as error:
            raise WorldLostError(str(error)) from error
        if inner is None:
            raise WorldLostError("a member was lost before the process group was created")
        # Threads of torch's and NCCL's may read the environment just now. The C library moves it only for a new name,
        # and all of them are there before the first group is made.
        if self.is_queued:
            nccl.stop_checking()
            os.environ.update(nccl.find_variables(os.environ))
        os.environ.update(place.as_environ())
        env.enter_span(os.environ, place.generation)
        prefixed: Any = dist.PrefixStore("elasticjob/session", inner)  # type: ignore[attr-defined]
        groups.name_groups_anew()
        dist.init_process_group(
            self._backend, store=prefixed, rank=place.rank, world_size=place.world_size, timeout=self._timeout
        )
        # With gloo one group serves both purposes.
        self.flags = (
            dist.group.WORLD if self._backend == "gloo" else dist.new_group(backend="gloo", timeout=self._timeout)
        )

    def _make_communicators(self, mine: list[Any], is_lost: Callable[[], bool]) -> None:
        """Make what the backend would make in the first collective, which is in a step: a loss would free nobody there.

        Nothing frees a thread either that waits for a peer to make its communicator. So it is not this one.
        """
        if not mine:
            return
        made = threading.Event()
        errors: list[Exception] = []

        def make() -> None:
            try:
                devices.use(self._device)
                while mine:
                    dist.all_reduce(torch.zeros(1, device=self._device), group=mine.pop(0))
                self.wait_for_device()
            except Exception as error:
                errors.append(error)
            finally:
                made.set()

        self._connected |= set(map(id, mine))
        threads.Thread(make, (), "elasticjob-connect").start()
        with completion.steps.connecting():
            while not made.wait(_LOOK_SECONDS):
                if is_lost():
                    raise WorldLostError("a member was lost while the communicators were made")
        if errors:
            raise errors.pop()  # one that this frame keeps would keep the frame

    def _find_unconnected(self) -> list[Any]:
        if not self.is_queued or dist.get_world_size() == 1:
            return []
        found = (group for group in groups.find_groups() if id(group) not in self._connected)
        return [group for group in found if not groups.is_gloo(group) and groups.can_reduce(group, self._device)]

    def enter_fixed(self, alone: bool) -> None:
        """Join the world of the launcher's variables, which never changes; `alone` makes a group for a single process
        too.
        """
        if dist.is_initialized():
            return
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group(self._backend, timeout=self._timeout)
        elif alone:
            here: Any = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(self._backend, store=here, rank=0, world_size=1)

    def barrier(self) -> None:
        """Wait until all ranks of the world have called this."""
        if not dist.is_initialized():
            return
        if self.flags is not None:
            dist.barrier(group=self.flags)
        else:  # torch guesses a device from the rank otherwise, which may be another process's
            on_cuda = self._device.type == "cuda" and self.is_queued
            dist.barrier(device_ids=[self._device.index or 0] if on_cuda else None)

    def leave(self, broken: bool) -> None:
        """Leave the world. Nobody waits for the communicators of a device."""
        if broken and dist.is_initialized():
            self.abort()
        self.flags = None  # or this group would be freed later than its backend
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                self._end(broken)
        self._connections = frozenset()

    def _end(self, broken: bool) -> None:
        if not self.is_queued:
            if self._world.is_stuck:
                waits.keep(self._world, groups.forget_groups())
            else:
                groups.destroy_groups()
            return
        gloo = [group for group in groups.find_groups() if groups.is_gloo(group)]
        others = [group for group in groups.forget_groups() if group not in gloo]
        if self._world.is_stuck:
            waits.keep(self._world, gloo)
        groups.drop_gloo(gloo)
        self._endings.end(others, broken)

    def abort(self) -> None:
        """Free the main thread from a blocked collective or group creation. Thread-safe; returns at once."""
        if self.is_queued:  # gloo has no abort
            queues.abort()
            self._endings.abort(group for group in groups.find_groups() if not groups.is_gloo(group))
        self._world.is_over.set()
        self.shut_down()

    def shut_down(self) -> None:
        """End the connections of the world: while it is entered, also those made since the last call. Thread-safe."""
        others = self._others
        if others is not None:
            sockets.knock(sockets.find_listeners() - self._listeners, self._pairs)
        inodes = self._connections if others is None else sockets.find_connections() - others
        if inodes:
            with self._keeping:
                sockets.shut_down(inodes, self._kept)

    def _forget_last(self) -> None:
        with self._keeping:
            for descriptor in self._kept.values():
                os.close(descriptor)
            self._kept.clear()


def is_world_failure(error: BaseException, is_lost: Callable[[], bool]) -> bool:
    """Whether an exception means that the world is lost, and not that the script has a bug.

    The exception's type decides, or else the agent: `is_lost` returns whether it reported a lost member. A bug that
    happens to show in a lost world is raised again in the next one, and recognised there.
    """
    if any(isinstance(one, WorldLostError | CollectiveFailedError) for one in failures.chain(error)):
        return True
    if failures.is_out_of_memory(error):
        return False
    if failures.is_broken_communication(error):
        return True
    if not isinstance(error, RuntimeError | OSError):
        return False
    return is_lost() or (not failures.can_be_recognized() and _comes_true(is_lost, _WORD_SECONDS))


def find_cause(
    error: BaseException, noted: Exception | None, is_failure: Callable[[BaseException], bool]
) -> str | None:
    """The words that say that the world is lost, if a script's block has ended with `error` for that reason.

    The error itself would keep the frames that it has ended, and the lost world with them.

    If a collective of the block has failed, `noted`, what the script makes of it has any form: words of its own instead
    of the error, or a mistake at values that never came. One that was there anyway is raised again in the next world.
    What was noted may also be an error of the device in a whole world. The runtime's own errors are no consequence: who
    finds out that ranks differ ends the waits of this one itself.
    """
    if isinstance(error, ElasticJobError) and not is_failure(error):
        return None
    return next((describe_loss(one) for one in (noted, error) if one is not None and is_failure(one)), None)


def _comes_true(is_lost: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_lost() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_lost()


def describe_loss(error: BaseException) -> str:
    """What broke the world, of whose failures this is one: not what the script makes of the wrong values in it."""
    says_it = isinstance(error, ElasticJobError) or failures.is_broken_communication(error)
    return first_line(error) if says_it else "a member was lost"


def first_line(error: BaseException) -> str:
    lines: list[str] = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]
