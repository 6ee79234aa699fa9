"""The agent's way into a world: the store of the world and, in a job that asks for it, the checkpoint to begin with."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from elasticjob.agent import events, rules
from elasticjob.agent.state import State
from elasticjob.archive.archive import Archive
from elasticjob.env import Settings, SettingsError
from elasticjob.peers.directory import Workers
from elasticjob.peers.entering import Place
from elasticjob.peers.keeper import Keeper
from elasticjob.peers.transport import PeerError
from elasticjob.protocol import store, wire
from elasticjob.torchcompat import threads

logger = logging.getLogger("elasticjob")

_STORE_PATIENCE = 30.0
_FLUSH_SECONDS = 10.0  # for copies of what the scripts have saved at the end of a world
_LAST_FLUSH_SECONDS, _LAST_ARCHIVE_SECONDS = 5.0, 20.0  # of the job: the operator lets its pods end by themselves


class Stores:
    """The stores of this agent. What takes long runs in threads, and posts an event at its end."""

    def __init__(
        self,
        settings: Settings,
        look: Callable[[], State],
        post: Callable[[events.Event], None],
        finish: Callable[[Callable[[], bool], float], None],
        look_at_workers: Callable[[], tuple[Workers, list[int]]],
        find_step: Callable[[], int | None] = lambda: None,
        on_archived: Callable[[], None] = lambda: None,
    ) -> None:
        """`look` returns the machine's present state. Raises SettingsError if the directory cannot be used."""
        self._address = settings.pod_ip
        self._look = look
        self._post = post
        self._finish = finish
        self._server: TCPStore | None = None  # the store that this agent offers while it is ready
        # By generation: a connection may complete after its world is over.
        self._stores: dict[int, store.GenerationStore] = {}
        self._keeper: Keeper | None = None
        self._kept = wire.Checkpoint()  # what was told last
        self._kept_lock = threading.Lock()
        if settings.checkpoints is not None:
            archive = settings.checkpoints.archive
            if archive is not None:
                self._kept = replace(self._kept, archive=wire.Archive())
            try:
                self._keeper = Keeper(
                    settings.checkpoints,
                    self._address,
                    lambda: self._look().peer_key,
                    look_at_workers,
                    self._on_kept,
                    None if archive is None else partial(Archive, archive, tell=self._on_archive, on_saved=on_archived),
                    find_step,
                    self._on_unfit,
                    self._on_unfinished,
                    lambda: self._look().leave_at is not None,
                )
            except OSError as error:
                remedy = "Run the container as a user who may write there."
                raise SettingsError(f"spec.checkpoints cannot be used: {error}. {remedy}") from None

    def open(self) -> None:
        """Open a new store; answered by Listening."""
        self._server, where = store.listen(self._address)
        self._post(events.Listening(where))

    def enter(self, world: wire.World) -> None:
        """Connect to the store of this world; answered by Entered or Missed."""
        mine = self._server if world.rank == 0 else None
        assert mine is not None or world.rank > 0
        self._server = mine  # the store of this generation is rank 0's
        if mine is not None and self._keeper is None:
            self._use(mine, world)
        else:
            threads.Thread(self._enter, (world, mine), "elasticjob-enter").start()

    def find(self, generation: int) -> store.GenerationStore:
        """The store of a world that this agent has entered. Raises KeyError for any other."""
        return self._stores[generation]

    def flush(self) -> bool:
        """Before the agent leaves its world: have copied what the scripts have saved last; and archived if all go.

        Whether it was done as this pod is told to end: it is not to be done again then.
        """
        if self._keeper is None:
            return True
        state = self._look()
        seconds = rules.find_time_to_archive(state, time.monotonic())
        self._flush(state, seconds)
        return seconds > 0

    def flush_at_end(self) -> None:
        """After `flush`, this pod was told to end: while it waited for the next world, or just before."""
        state = self._look()
        seconds = rules.find_time_to_archive(state, time.monotonic())
        if self._keeper is not None and self._keeper.has_last_tier and seconds > 0:
            self._flush(state, seconds)

    def _flush(self, state: State, seconds: float) -> None:
        assert self._keeper is not None
        all_leave, waits = rules.do_all_leave(state), state.world is None
        self._keeper.flush(_FLUSH_SECONDS, seconds, do_all_leave=all_leave, waits=waits)

    def archive(self) -> None:
        """After the success of the job: have archived what the scripts have saved last."""
        if self._keeper is not None and self._keeper.has_last_tier:
            self._keeper.flush(_LAST_FLUSH_SECONDS, _LAST_ARCHIVE_SECONDS)

    def close_all(self) -> None:
        """Close the stores, which releases everything that blocks in them."""
        while self._stores:
            self._stores.popitem()[1].close()
        self._server = None

    def end(self) -> None:
        """The agent is about to exit."""
        self.close_all()
        if self._keeper is not None:
            self._keeper.close()

    def _enter(self, world: wire.World, inner: TCPStore | None) -> None:
        def missed() -> bool:
            return rules.is_missed(self._look(), world.generation)

        while inner is None and not missed():
            try:
                inner = store.connect(world.store, missed, time.monotonic() + _STORE_PATIENCE)
            except OSError as error:
                logger.warning(
                    "Generation %d: %s. Retrying until the hub ends this generation.", world.generation, error
                )
        if inner is None or not self._restore(inner, world, missed):
            self._post(events.Missed(world.generation))
        else:
            self._use(inner, world)

    def _restore(self, inner: TCPStore, world: wire.World, missed: Callable[[], bool]) -> bool:
        """Make the newest checkpoint appear in this pod. False if the world cannot be entered."""
        if self._keeper is None:
            return True
        state = self._look()
        self._tell()  # the hub then waits for as long as it takes
        place = Place(world.generation, world.rank, len(world.nprocs), touches=not state.keeps_memory)
        try:
            return self._keeper.enter(inner, place, missed)
        except (PeerError, OSError) as error:
            logger.warning("Generation %d: could not agree on a checkpoint: %s", world.generation, error)
            return False

    def _use(self, inner: TCPStore, world: wire.World) -> None:
        self._stores[world.generation] = store.GenerationStore(inner, world, self._finish)
        self._post(events.Entered(world.generation))

    def _on_kept(self, number: int, copies: int) -> None:
        self._tell(number=number, copies=copies)

    def _on_unfit(self, unfit: str) -> None:
        self._tell(unfit=unfit)

    def _on_unfinished(self, unfinished: str) -> None:
        self._tell(unfinished=unfinished)

    def _on_archive(self, archive: wire.Archive) -> None:
        self._tell(archive=archive)

    def _tell(self, **changes: Any) -> None:
        with self._kept_lock:
            self._kept = replace(self._kept, **changes)
            self._post(events.Kept(self._kept))
